// SPDX-License-Identifier: Apache-2.0
/// Where the elements of accumulators are: a warp has 16 rows, a lane two of them, eight apart, and of every eight columns two neighbours.
/// Pairs of probabilities are, in this order, the first operand of a product over these columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

namespace fovea::gpu {

/// Which of the lane's two rows its i-th accumulator is of.
__device__ constexpr int row_of(int i) { return i / 2 % 2; }
/// Its column, without that of the lane.
__device__ constexpr int column_of(int i) { return i / 4 * 8 + i % 2; }
/// The lane's first row and column.
__device__ inline int lane_row(int lane) { return lane / 4; }
__device__ inline int lane_column(int lane) { return lane % 4 * 2; }

/// Two neighbours as 16-bit elements.
template <class Element>
__device__ inline std::uint32_t packed_pair(float low, float high);
template <>
__device__ inline std::uint32_t packed_pair<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
template <>
__device__ inline std::uint32_t packed_pair<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}

}  // namespace fovea::gpu
