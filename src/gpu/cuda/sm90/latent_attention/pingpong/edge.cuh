// SPDX-License-Identifier: Apache-2.0
/// Values of tiles whose keys not all rows see. A probability of 0 does not hide a value: zero times NaN is NaN. So values of keys that no
/// row sees become zeros, and of keys that some rows see those that are not finite. Rows that see such a key become NaN all the same: a
/// value is a part of its key, so the key's score is not finite either.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// One warpgroup's half of the columns of a tile.
template <class Element>
struct EdgeTile {
  std::uint32_t values;  // address of the half's first slice: [group][slice][8 keys][64], as part of a key tile
  int half;
  int key;       // the first key of the tile
  Visible keys;  // to the rows of this query tile

  /// By the warpgroup, where all rows see the same keys: values of the other keys reach no MMA.
  __device__ void clear() const {
    clear_unseen();
    fence_shared_for_async();
    named_sync(kWarpgroup + half, 128);
  }

  /// By the warpgroup, before the MMAs with these values.
  __device__ void hide() const {
    clear_unseen();
    named_sync(kWarpgroup + half, 128);  // every warp arrives once its scores of these keys are complete
    clear_not_finite();
    fence_shared_for_async();
    named_sync(kWarpgroup + half, 128);
  }

 private:
  static constexpr int kChunks = kHalfSlices * 8;  // chunks of 16 bytes in half a row: one for each lane
  static constexpr std::uint32_t kExponent = std::is_same_v<Element, __half> ? 0x7c00 : 0x7f80;
  static_assert(kChunks == 32);

  static __device__ bool low_is_finite(std::uint32_t pair) { return (pair & kExponent) != kExponent; }
  static __device__ bool high_is_finite(std::uint32_t pair) { return (pair >> 16 & kExponent) != kExponent; }

  /// Address of the i-th chunk of a row.
  __device__ std::uint32_t chunk(int row, int i) const {
    return values + row / 8 * kKeyGroup + i / 8 * kGroupBytes + row % 8 * 128 + (i % 8 ^ row % 8) * 16;
  }
  __device__ bool is_seen(int row) const { return key + row >= keys.some.begin && key + row < keys.some.end; }
  /// Whether some rows see a key, and others do not.
  __device__ bool is_partial(int row) const { return is_seen(row) && (key + row < keys.every.begin || key + row >= keys.every.end); }

  __device__ void clear_unseen() const {
#pragma unroll 1
    for (int row = threadIdx.x % 128 / 32; row < kKeyTile; row += 4) {
      if (!is_seen(row)) store_shared(chunk(row, lane_index()), 0, 0, 0, 0);
    }
  }

  __device__ void clear_not_finite() const {
#pragma unroll 1
    for (int row = threadIdx.x % 128 / 32; row < kKeyTile; row += 4) {
      if (!is_partial(row)) continue;
      const std::uint32_t at = chunk(row, lane_index());
      std::uint32_t pairs[4];
      load_shared(at, pairs);
      for (std::uint32_t& pair : pairs) pair &= (low_is_finite(pair) ? 0xffffu : 0u) | (high_is_finite(pair) ? 0xffff0000u : 0u);
      store_shared(at, pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
};

}  // namespace fovea::gpu::sm90::latent
