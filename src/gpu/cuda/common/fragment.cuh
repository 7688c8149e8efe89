// SPDX-License-Identifier: Apache-2.0
/// Where the elements of accumulators are: a warp has 16 rows, a lane two of them, eight apart, and of every eight columns two neighbours.
/// Pairs of probabilities are, in this order, the first operand of a product over these columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace fovea::gpu {

/// Which of the lane's two rows its i-th accumulator is of.
__device__ constexpr int row_of(int i) { return i / 2 % 2; }
/// Its column, without that of the lane.
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

}  // namespace fovea::gpu
