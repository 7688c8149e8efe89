// SPDX-License-Identifier: Apache-2.0
/// Warpgroup accumulators (64 x kN). A warp has 16 rows, in the layout of gpu/cuda/common/fragment.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90 {

/// Multiplies each of the lane's two rows by its factor.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&accumulators)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) accumulators[i] *= factor[row_of(i)];
}

/// Rounds two neighbours to a pair of 16-bit elements.
template <class Element>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// The inverse of pack().
template <class Element>
__device__ inline float2 unpack(std::uint32_t pair) {
  if constexpr (std::is_same_v<Element, __half>) return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000)};
}

/// Stores a warp's 16 rows of packed accumulators in slices of 64 columns, `slice_bytes` apart. Rows of
/// a slice have 128 bytes in the 128-byte swizzle. `row_at`: address of the warp's row lane % 16 in the
/// first slice. `row`: its number, of which only row % 8 counts.
template <int kColumns>
__device__ __forceinline__ void store_swizzled_row(std::uint32_t row_at, int row, int slice_bytes, int lane,
                                                   const std::uint32_t (&pairs)[kColumns / 4]) {
  static_assert(kColumns % 16 == 0);
#pragma unroll
  for (int i = 0; i < kColumns / 16; ++i) {  // 16 columns: two chunks of 16 bytes
    const int chunk = i % 4 * 2 + lane / 16;
    const std::uint32_t* x = &pairs[4 * i];
    store_matrices(row_at + i / 4 * slice_bytes + (chunk ^ (row % 8)) * 16, x[0], x[1], x[2], x[3]);
  }
}
/// The same where the 16 rows follow each other. `rows`: address of the first row, a multiple of 1024.
template <int kColumns>
__device__ inline void store_swizzled(std::uint32_t rows, int slice_bytes, int lane, const std::uint32_t (&pairs)[kColumns / 4]) {
  store_swizzled_row<kColumns>(rows + lane % 16 * 128, lane, slice_bytes, lane, pairs);
}

}  // namespace fovea::gpu::sm90
