// SPDX-License-Identifier: Apache-2.0
/// Q K^T plus terms that are linear in the number of a column, by one more MMA.
#pragma once

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/gemm.cuh"

namespace fovea::gpu::sm90::dense {

/// Operand b of this MMA, without swizzle: eight elements for each column of scores. The first kUnits of them are kUnit, the next
/// kNumbers the number of the column, counted from the middle of the tile. The others are 0.
template <class Element, int kColumns, int kUnits, int kNumbers>
struct NumberTile {
  static constexpr int kUnit = 64;
  alignas(128) Element of_column[kColumns][8];

  /// By all threads of a CTA, before its barrier.
  __device__ void fill() {
    for (int at = static_cast<int>(threadIdx.x); at < kColumns * 8; at += static_cast<int>(blockDim.x)) {
      const int column = at / 8, i = at % 8, value = i < kUnits ? kUnit : i < kUnits + kNumbers ? column - kColumns / 2 : 0;
      from_f32(static_cast<float>(value), of_column[column][i]);
    }
    fence_shared_for_async();
  }
  /// Elements 8 to 15, which operand a multiplies by zeros, are elements 0 to 7 again.
  __device__ __forceinline__ std::uint64_t descriptor() const { return smem_descriptor_no_swizzle(shared_address(of_column), 0, 128); }
};

/// Issues scores = rows columns^T as gemm_ss() does, with more to come before the commit.
template <class Element, int kDim, int kColumns>
__device__ __forceinline__ void issue_product(float (&scores)[kColumns / 2], SlicedTile rows, SlicedTile columns) {
  const std::uint64_t a = smem_descriptor(rows.at, 16, rows.group_bytes), b = smem_descriptor(columns.at, 16, columns.group_bytes);
  fence_operand(scores);
  wgmma_fence();
#pragma unroll
  for (int step = 0; step < kDim / 16; ++step) {
    const int slice = step / 4, inside = step % 4 * 32;
    Wgmma<Element, kColumns>::template ss<Major::k>(scores, advance_descriptor(a, slice * rows.slice_bytes + inside),
                                                    advance_descriptor(b, slice * columns.slice_bytes + inside), step > 0);
  }
}

/// Adds a numbers^T to them, and commits. Columns 8 to 15 of `a` are 0. A wgmma_fence() is between its writes and this call.
template <class Element, int kColumns>
__device__ __forceinline__ void issue_numbers(float (&scores)[kColumns / 2], const std::uint32_t (&a)[4], std::uint64_t numbers) {
  Wgmma<Element, kColumns>::template rs<Major::k>(scores, a, numbers, true);
  wgmma_commit();
}

}  // namespace fovea::gpu::sm90::dense
