// SPDX-License-Identifier: Apache-2.0
/// The two GEMMs of a backward pass, by a warp with kBlocks blocks of 16 rows: with both operands in shared memory
/// (ss), or with A in registers (rs).
#pragma once

#include <cstddef>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/shared.cuh"

namespace fovea::gpu::portable::attention_backward {

template <class Element, int kBlocks, int kColumns>
struct WarpGemm {
  /// to (rows x columns) = rows (rows x kDim, from `warp_row` on) columns (columns x kDim)^T
  template <int kDim>
  static __device__ __forceinline__ void gemm_ss(float (&to)[kBlocks][kColumns / 2], const std::byte* rows, int warp_row,
                                                 const std::byte* columns) {
    using Layout = SwizzledRows<kDim>;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const MatrixPlace row = a_operand_place(lane), column = b_operand_place(lane);
    const std::uint32_t rows_at = shared_address(rows) + static_cast<std::uint32_t>(Layout::offset(warp_row + row.row, row.chunk));
    const std::uint32_t columns_at = shared_address(columns) + static_cast<std::uint32_t>(Layout::offset(column.row, column.chunk));
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : to[b]) x = 0;
    }
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      std::uint32_t first[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ldmatrix(first[b], Layout::advanced(rows_at, 16 * step) + b * 16 * Layout::kRowBytes);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        std::uint32_t second[4];
        ldmatrix(second, Layout::advanced(columns_at, 16 * step) + n * 16 * Layout::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          mma<Element>(&to[b][8 * n], first[b], second[0], second[1]);
          mma<Element>(&to[b][8 * n + 4], first[b], second[2], second[3]);
        }
      }
    }
  }

  /// sums (rows x kDim) += weights (rows x columns) columns (columns x kDim)
  template <int kDim>
  static __device__ __forceinline__ void gemm_rs(float (&sums)[kBlocks][kDim / 2], const std::uint32_t (&weights)[kBlocks][kColumns / 4],
                                                 const std::byte* columns) {
    using Layout = SwizzledRows<kDim>;
    const MatrixPlace place = a_operand_place(static_cast<int>(threadIdx.x) % 32);
    const std::uint32_t at = shared_address(columns) + static_cast<std::uint32_t>(Layout::offset(place.row, place.chunk));
#pragma unroll
    for (int step = 0; step < kColumns / 16; ++step) {
#pragma unroll
      for (int n = 0; n < kDim / 16; ++n) {
        std::uint32_t second[4];
        ldmatrix_trans(second, Layout::advanced(at, 16 * n) + step * 16 * Layout::kRowBytes);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b) {
          const std::uint32_t first[4] = {weights[b][4 * step], weights[b][4 * step + 1], weights[b][4 * step + 2],
                                          weights[b][4 * step + 3]};
          mma<Element>(&sums[b][8 * n], first, second[0], second[1]);
          mma<Element>(&sums[b][8 * n + 4], first, second[2], second[3]);
        }
      }
    }
  }
};

}  // namespace fovea::gpu::portable::attention_backward
