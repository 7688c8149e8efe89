// SPDX-License-Identifier: Apache-2.0
/// Accumulators of an MMA. A warp has 16 rows: each lane has two of them, eight apart, and two neighbours of every eight
/// columns. Pairs of probabilities are, in this order, the A operand of an MMA over these columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fovea::gpu {

/// Row of the lane's i-th accumulator: the first or the second of its two.
__device__ constexpr int row_of(int i) { return i / 2 % 2; }
/// Column of the lane's i-th accumulator, counted from lane_column.
__device__ constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }
/// The lane's first row and column.
__device__ inline int lane_row(int lane) { return lane / 4; }
__device__ inline int lane_column(int lane) { return lane % 4 * 2; }

/// Rounds two neighbours to a pair of 16-bit elements.
template <class Element>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

/// The inverse of pack().
template <class Element>
__device__ inline float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __half>) return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

/// Four e4m3 elements, the first in the lowest byte; beyond 448 they saturate. From compute capability 8.9 on.
__device__ inline std::uint32_t pack_e4m3(float a, float b, float c, float d) {
  std::uint32_t packed;
  asm("{\n.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}"
      : "=r"(packed)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return packed;
}

/// Score of an absent or invisible key, also as an integer.
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
/// Stores the lane's columns of row r times `factor`, up to `columns`. `to`: address of the lane's first column, `first`.
template <int kCount>
__device__ __forceinline__ void store_row(float* to, const float (&x)[kCount], int r, float factor, int first, int columns) {
#pragma unroll
  for (int i = 2 * r; i < kCount; i += 4) {
    if (column_of(i) + first >= columns) continue;
    *reinterpret_cast<float2*>(to + column_of(i)) = {x[i] * factor, x[i + 1] * factor};
  }
}

/// A lane's two rows.
struct RowPair {
  unsigned lanes[2];  // lanes_not_finite
  float share[2];     // factor of the weighted mean of the row's values; 0 for a row without keys
};

/// Ballot of the lanes whose r-th row has a value that is not finite.
template <int kCount>
__device__ __forceinline__ unsigned lanes_not_finite(const float (&out)[kCount], int r) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (row_of(i) == r) zero = fmaf(out[i], 0.0f, zero);
  }
  return __ballot_sync(~0u, zero != 0);
}

/// Visits the rows of a warp that have a value that is not finite. It may come from a key that the row does not see, as
/// 0 * NaN is NaN. The whole warp calls `visit(row, lane, share)`; `lane` is the first that has the row.
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
