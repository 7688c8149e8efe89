// SPDX-License-Identifier: Apache-2.0
/// Keys and values as operands of MMAs, from rows of 16-bit elements or of e4m3 values, which become halves exactly. One
/// ldmatrix covers 32 bytes of 16 rows: one or two steps of 16 columns.
#pragma once

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
struct Operands {
  using Rows = CacheRows<Config>;
  static constexpr int kSteps = Config::kQuantised ? 2 : 1;        // steps of a load
  static constexpr int kLoads = Config::kHeadDim / (16 * kSteps);  // loads of a row
  using Fragments = std::uint32_t[kSteps][4];

  /// Keys x columns as A operand. As B operands, the first eight keys are words 0 and 2, the others words 1 and 3. In the
  /// 16 columns of a step, e4m3 rows have 4t, 4t+1 in place of 2t, 2t+1, and 4t+2, 4t+3 in place of 2t+8, 2t+9. Queries
  /// have the same order (Loader::convert_queries).
  static __device__ __forceinline__ void keys(Fragments& to, std::uint32_t tile, int row, int load, int lane) {
    const MatrixPlace place = a_operand_place(lane);
    const std::uint32_t at = Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load);
    if constexpr (Config::kQuantised) {
      std::uint32_t codes[4];
      ldmatrix(codes, at);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) to[i][j] = halves_from_e4m3(codes[2 * i + j % 2] >> (j < 2 ? 0 : 16));
      }
    } else {
      ldmatrix(to[0], at);
    }
  }

  /// Columns x keys as A operand. As B operands, the first eight columns are words 0 and 2, the others words 1 and 3;
  /// column() gives their numbers.
  static __device__ __forceinline__ void values(Fragments& to, std::uint32_t tile, int row, int load, int lane) {
    const MatrixPlace place = Config::kQuantised ? a_operand_place(lane) : b_operand_place(lane);
    const std::uint32_t at = Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load);
    if constexpr (Config::kQuantised) {
      std::uint32_t codes[4];
      ldmatrix_trans(codes, at);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const std::uint32_t pairs = __byte_perm(codes[2 * i + j / 2], 0, 0x3120);  // of two keys, for each of two columns
          to[i][j] = halves_from_e4m3(pairs >> (j % 2 * 16));
        }
      }
    } else {
      ldmatrix_trans(to[0], at);
    }
  }

  /// The index-th column of the first or the second eight of a step.
  static __device__ constexpr int column(int step, int second, int index) {
    return 16 * step + (Config::kQuantised ? 2 * index + second : 8 * second + index);
  }
};

}  // namespace fovea::gpu::portable::paged_attention
