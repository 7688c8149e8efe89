// SPDX-License-Identifier: Apache-2.0
/// MMAs of a math warpgroup with a pair of key tiles, and the barriers of the tiles' halves.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"

namespace fovea::gpu::sm90::latent {

// Tiles of a pair, and halves of a tile, are compile-time arguments: register arrays and barriers have constant indices.
using Even = std::integral_constant<int, 0>;
using Odd = std::integral_constant<int, 1>;
using Left = std::integral_constant<int, 0>;
using Right = std::integral_constant<int, 1>;

template <class Config>
struct TilePair {
  using Element = typename Config::Element;

  __device__ TilePair(Storage<Config>& storage_, int half_) : storage(storage_), half(half_) {}

  // ---- scores -------------------------------------------------------------------------------------------------------------------

  /// Issues the first slice of scores = Q K^T, so that MMAs continue while earlier ones are waited for. It is in the half that is loaded
  /// first: the left half of even tiles, the right half of odd tiles.
  template <class Tile>
  __device__ void start_scores(Tile) {
    wait_full(Tile{}, Tile{});
    fence_operand(scores);
    wgmma_fence();
    add_scores<Tile::value, Tile::value, 0, 1>(false);
    wgmma_commit();
  }
  template <class Tile>
  __device__ void end_scores(Tile) {
    continue_scores(Tile{});
    finish_scores(Tile{});
  }
  template <class Tile>
  __device__ void continue_scores(Tile) {
    wgmma_fence();
    add_scores<Tile::value, Tile::value, 1>(true);
    wgmma_commit();
  }
  template <class Tile>
  __device__ void finish_scores(Tile) {
    using Other = std::integral_constant<int, 1 - Tile::value>;
    wait_full(Tile{}, Other{});
    wgmma_fence();
    add_scores<Tile::value, Other::value>(true);
    wgmma_commit();
  }

  // ---- values -------------------------------------------------------------------------------------------------------------------

  template <class Tile>
  __device__ void values_from_registers(Tile) {
    const std::uint64_t v = values_operand(Tile{});
    fence_operand(probabilities);
    fence_operand(out);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) add_values(&probabilities[4 * step], advance_descriptor(v, step * 2 * kKeyGroup));
    wgmma_commit();
  }

  template <class Tile>
  __device__ void values_from_shared(Tile, std::uint32_t p, int group_bytes) {
    const std::uint64_t a = smem_descriptor(p, 16, group_bytes), v = values_operand(Tile{});
    fence_operand(out);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) add_values(advance_descriptor(a, step * 32), advance_descriptor(v, step * 2 * kKeyGroup));
    wgmma_commit();
  }

  __device__ void clear_out() {
#pragma unroll
    for (float& x : out) x = 0;
  }
  __device__ void rescale_out(const float (&rescale)[2]) { scale_rows(out, rescale); }

  // ---- barriers -----------------------------------------------------------------------------------------------------------------

  template <class Tile, class Half>
  __device__ void wait_full(Tile, Half) {
    barrier_wait(shared_address(&storage.full[Tile::value * 2 + Half::value]), parity);
    if (Config::kGathered) fence_shared_for_async();  // loaders do not wait for their own copies, so they cannot fence
  }

  /// Releases a half that this warp has read for the last time.
  template <class Tile, class Half>
  __device__ void release(Tile, Half) {
    const std::uint32_t empty = shared_address(&storage.empty[Tile::value * 2 + Half::value]);
    if (lane_index() != 0) return;  // lane 0 has read which keys are present; it signals both CTAs
    if constexpr (Config::kCluster > 1) {
      static_assert(Config::kCluster == 2);
      barrier_arrive_at(empty, cluster_rank() ^ 1);
    }
    barrier_arrive(empty);
  }

  /// Address of this warpgroup's half of a tile.
  template <class Tile>
  __device__ std::uint32_t own_half(Tile) const {
    return shared_address(storage.k[Tile::value]) + half * kHalfSlices * kGroupBytes;
  }

  Storage<Config>& storage;
  int half;                         // of the columns: the warpgroup
  float out[128], scores[32];       // accumulators: 64 rows x 256 columns, and 64 rows x 64 keys
  std::uint32_t probabilities[16];  // P of this warpgroup's tile: operand A
  std::uint32_t parity = 0;         // of `full` of this pair's halves

 private:
  /// Slices [kFirst, kEnd) of a half.
  template <int kBuffer, int kHalf, int kFirst = 0, int kEnd = kHalf == 0 ? kHalfSlices : Config::kSlices - kHalfSlices>
  __device__ void add_scores(bool accumulate) {
    const std::uint64_t q = smem_descriptor(shared_address(storage.q), 16, Config::kQueryGroup);
    const std::uint64_t k = smem_descriptor(shared_address(storage.k[kBuffer]), 16, kKeyGroup);
#pragma unroll
    for (int slice = kFirst; slice < kEnd; ++slice) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const int at = (kHalf * kHalfSlices + slice) * kGroupBytes + step * 32;
        Wgmma<Element, kKeyTile>::template ss<Major::k>(scores, advance_descriptor(q, at), advance_descriptor(k, at),
                                                        accumulate || slice > kFirst || step > 0);
      }
    }
  }

  template <class Tile>
  __device__ std::uint64_t values_operand(Tile) const {
    return smem_descriptor(own_half(Tile{}), kGroupBytes, kKeyGroup);
  }

  /// Adds P V of 16 keys: one MMA, or one for each half of the columns.
  template <class Probabilities>
  __device__ void add_values(Probabilities p, std::uint64_t v) {
    if constexpr (Config::kWideMmas) {
      multiply<256>(out, p, v);
    } else {
      multiply<128>(accumulator_slice<64>(out, 0), p, v);
      multiply<128>(accumulator_slice<64>(out, 64), p, advance_descriptor(v, kHalfSlices / 2 * kGroupBytes));
    }
  }
  /// P from shared memory, or from registers.
  template <int kColumns>
  static __device__ void multiply(float (&to)[kColumns / 2], std::uint64_t p, std::uint64_t v) {
    Wgmma<Element, kColumns>::template ss<Major::mn>(to, p, v, true);
  }
  template <int kColumns>
  static __device__ void multiply(float (&to)[kColumns / 2], const std::uint32_t* p, std::uint64_t v) {
    Wgmma<Element, kColumns>::template rs<Major::mn>(to, p, v, true);
  }
};

/// One warpgroup's half of the columns of a tile whose keys not all rows see. A probability of 0 does not hide a value: 0 times NaN is NaN.
/// So values of keys that no row sees become zeros, and of keys that some rows see those that are not finite. Rows that see such a key are
/// NaN all the same: its score is not finite either, because a value is a part of its key.
template <class Element>
struct EdgeTile {
  std::uint32_t values;  // address of the half's first slice: [group][slice][8 keys][64], as part of a key tile
  int half;
  int key;       // the first key of the tile
  Visible keys;  // to the rows of this query tile

  /// Clears values of keys that no row sees. The warpgroup calls this if all rows see the same keys.
  __device__ void clear() const {
    clear_unseen();
    fence_shared_for_async();
    named_sync(kWarpgroup + half, 128);
  }

  /// Clears values of keys that no row sees, and values that are not finite of keys that some rows see. The warpgroup calls this before
  /// its MMAs with these values.
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
  /// Whether some rows see a key and others do not.
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
