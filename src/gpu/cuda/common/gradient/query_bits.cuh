// SPDX-License-Identifier: Apache-2.0
/// Bits of a partial block's pairs, where rows of accumulators are keys: for each query of a tile a word with the keys of a warp.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"

namespace fovea::gpu::gradient {

/// A lane has every 32nd query. `lane()` is its number.
template <int kQueries>
struct QueryBits {
  static_assert(kQueries % 32 == 0);
  bool partial = false;
  std::uint32_t words[kQueries / 32];

  /// `bits`: the word of the tile's first query and of the CTA's first key, or null. `row_words`: from one query to the next.
  /// `key`: the warp's first, of the CTA's.
  template <class Lane>
  __device__ __forceinline__ void load(const std::int32_t* bits, int row_words, int key, const Lane& lane) {
    partial = bits != nullptr;
    if (!partial) return;
#pragma unroll
    for (int i = 0; i < kQueries / 32; ++i) {
      const int word = __ldg(bits + (lane() + 32 * i) * row_words + key / 32);
      words[i] = static_cast<std::uint32_t>(word) >> key % 32;
    }
  }
  /// Calls `hide(i)` for accumulators of a block of 16 keys whose bits are 0. `first_key`: of the block, from the warp's first on.
  template <class Lane, class Hide>
  __device__ __forceinline__ void keep(int first_key, const Lane& lane, const Hide& hide) const {
    if (!partial) return;
#pragma unroll
    for (int i = 0; i < kQueries / 2; i += i % 2 == 0 ? 1 : 3) {
      const int query = column_of(i) % 32 + lane_column(lane());
      const std::uint32_t keys = __shfl_sync(~0u, words[column_of(i) / 32], query) >> (first_key + lane() / 4);
      if ((keys & 1) == 0) hide(i);
      if ((keys >> 8 & 1) == 0) hide(i + 2);
    }
  }
};

}  // namespace fovea::gpu::gradient
