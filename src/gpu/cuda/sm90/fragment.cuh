// SPDX-License-Identifier: Apache-2.0
/// Warpgroup accumulators (64 x kN). A warp has 16 rows, in the layout of gpu/cuda/common/fragment.cuh.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90 {

/// Multiplies each of the lane's two rows by its factor.
template <int kCount>
__device__ __forceinline__ void scale_rows(float (&accumulators)[kCount], const float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) accumulators[i] *= factor[row_of(i)];
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
