// SPDX-License-Identifier: Apache-2.0
/// The bits of a packed mask in a kernel: of one key, and of 64 keys for the scores of a lane.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/packed_mask.hpp"

namespace fovea::gpu {

/// The bits of one query row.
struct RowBits {
  const std::uint8_t* data;
  std::int64_t bytes;  // of the whole mask
  std::int64_t first;  // bit of `first_key`
  int first_key;       // may lie before key 0

  /// `from` is the sequence's; `row` counts in it. A number that would not fit is the caller's mistake and leads nowhere.
  static __device__ RowBits of(const MaskParams& mask, MaskBegin from, int row) {
    const int keys = mask.tail == 0 ? from.seq_k : mask.tail;
    const std::int64_t byte = mask.row_bytes != 0 ? (from.first_row + row) * mask.row_bytes : from.byte;
    const std::int64_t first = 8 * byte + (mask.row_bytes != 0 ? 0 : std::int64_t{row} * keys);
    return {mask.data, mask.bytes, first, from.seq_k - keys};
  }

  __device__ bool shows(int key) const {
    if (key < first_key) return true;
    const std::int64_t bit = first + (key - first_key);
    return (byte_at(bit >> 3) >> (bit & 7) & 1) != 0;
  }

  /// Bits of keys [key, key + 64), the first in the lowest; keys without a bit are shown. By all lanes of a warp: the four
  /// lanes that share a row load its bytes together.
  __device__ __forceinline__ std::uint64_t of_keys(int key) const {
    const int bare = max(first_key - key, 0);
    if (bare >= 64) return ~std::uint64_t{0};
    const std::int64_t bit = first + max(key - first_key, 0), byte = bit >> 3;
    const int quarter = static_cast<int>(threadIdx.x) % 4;
    const unsigned own = byte_at(byte + 2 * quarter) | byte_at(byte + 2 * quarter + 1) << 8, behind = byte_at(byte + 8);
    const unsigned other = __shfl_xor_sync(~0u, own, 1), word = quarter % 2 == 0 ? own | other << 16 : other | own << 16;
    const unsigned far = __shfl_xor_sync(~0u, word, 2), low = quarter < 2 ? word : far, high = quarter < 2 ? far : word;
    const auto shift = static_cast<unsigned>(bit & 7);
    const std::uint64_t bits = std::uint64_t{__funnelshift_r(high, behind, shift)} << 32 | __funnelshift_r(low, high, shift);
    return bits << bare | ((std::uint64_t{1} << bare) - 1);
  }

 private:
  __device__ unsigned byte_at(std::int64_t at) const { return at >= 0 && at < bytes ? data[at] : 0; }
};

/// Hides the scores of the lane's row r whose bit is 0. Bit 0 of `shown` is that of column `from`, of the row's first lane.
template <int kCount>
__device__ __forceinline__ void hide_unshown(float (&scores)[kCount], int r, std::uint64_t shown, int from, int lane) {
  const std::uint64_t own = shown >> lane_column(lane);
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int column = column_of(i) - from;
    if (row_of(i) == r && column >= 0 && column < 64 && (own >> column & 1) == 0) scores[i] = kHidden<float>;
  }
}

}  // namespace fovea::gpu
