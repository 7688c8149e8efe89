// SPDX-License-Identifier: Apache-2.0
/// The mask of a row of scores as the bits of a word, from which one instruction sets seven predicates.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"

namespace fovea::gpu::sm90::dense {

/// The lowest `count` bits, up to all 32.
__device__ __forceinline__ std::uint32_t lowest_bits(int count) {
  std::uint32_t bits;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(bits) : "r"(count));
  return bits;
}

/// Number of the lane's columns of a row before `end`, which counts from the first of them. A lane has two
/// of every eight.
__device__ __forceinline__ int columns_before(int end, int columns) {
  const int bound = min(max(end, 0), columns);
  return bound / 8 * 2 + min(bound % 8, 2);
}

/// Hides scores of the lane's row r outside columns [begin, end), which count from the lane's first. It takes two thirds of the
/// instructions of mask_row() in gpu/cuda/common/fragment.cuh.
template <class Score, int kCount>
__device__ __forceinline__ void mask_row_by_bits(Score (&scores)[kCount], int r, int begin, int end) {
  static_assert(kCount <= 64);  // a row has half of them
  const std::uint32_t seen = lowest_bits(columns_before(end, 2 * kCount)) & ~lowest_bits(columns_before(begin, 2 * kCount));
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (row_of(i) == r && (seen >> (i / 4 * 2 + i % 2) & 1) == 0) scores[i] = kHidden<Score>;
  }
}

}  // namespace fovea::gpu::sm90::dense
