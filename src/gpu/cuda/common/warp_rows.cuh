// SPDX-License-Identifier: Apache-2.0
/// The 16 rows whose accumulators a warp has: masks, stores, and which of them are not finite.
#pragma once

#include <climits>
#include <cmath>
#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"

namespace fovea::gpu {

/// A score of an absent or invisible key, or the sum of products in its place.
template <class Score>
inline constexpr Score kHidden = static_cast<Score>(-INFINITY);
template <>
inline constexpr int kHidden<int> = INT_MIN;

/// Hides scores of the lane's row r outside columns [begin, end), which count from the lane's first.
template <class Score, int kCount>
__device__ __forceinline__ void mask_row(Score (&scores)[kCount], int r, int begin, int end) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (row_of(i) == r && (column_of(i) < begin || column_of(i) >= end)) scores[i] = kHidden<Score>;
  }
}
/// Stores the lane's part of row r times `factor`, as far as the row has columns. `to`: of the lane's first column, `first`.
template <int kCount>
__device__ __forceinline__ void store_row(float* to, const float (&x)[kCount], int r, float factor, int first, int columns) {
#pragma unroll
  for (int i = 2 * r; i < kCount; i += 4) {
    if (column_of(i) + first >= columns) continue;
    *reinterpret_cast<float2*>(to + column_of(i)) = {x[i] * factor, x[i + 1] * factor};
  }
}

/// What a lane knows of its two rows of 16.
struct RowPair {
  unsigned lanes[2];  // lanes_not_finite
  float share[2];     // what the weighted mean of the row's values is multiplied by; 0 for a row without keys
};

/// The lanes whose r-th row holds something that is not finite.
template <int kCount>
__device__ __forceinline__ unsigned lanes_not_finite(const float (&out)[kCount], int r) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (row_of(i) == r) zero = fmaf(out[i], 0.0f, zero);
  }
  return __ballot_sync(~0u, zero != 0);
}

/// Visits the rows of a warp with something that is not finite, which may have come from a value that the row does not see: 0 * NaN is NaN.
/// `visit(row, lane, share)`, where the lane is the first that has it; by the whole warp.
template <class Visit>
__device__ __forceinline__ void for_rows_not_finite(const RowPair& rows, const Visit& visit) {
  __syncwarp();  // stores of these rows by other lanes come first
  for (int i = 0; i < 16; ++i) {
    const int lane = i % 8 * 4;
    if (((i < 8 ? rows.lanes[0] : rows.lanes[1]) >> lane & 0xf) == 0) continue;
    visit(i, lane, __shfl_sync(~0u, i < 8 ? rows.share[0] : rows.share[1], lane));
  }
}

}  // namespace fovea::gpu
