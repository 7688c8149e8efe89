// SPDX-License-Identifier: Apache-2.0
/// Keys and values as operands of MMAs, from rows of 16-bit elements or of codes, which become halves exactly. One
/// ldmatrix covers 32 bytes of 16 rows: one, two or four steps of 16 columns.
#pragma once

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/paged_attention/codes.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

/// Elements of 16 bits.
template <class Config, int kBits = Config::Format::kBits>
struct Operands {
  using Rows = CacheRows<Config>;
  static constexpr int kSteps = 1;                                 // steps of a load
  static constexpr int kLoads = Config::kHeadDim / (16 * kSteps);  // loads of a row
  using Fragments = std::uint32_t[kSteps][4];

  /// Keys x columns as A operand. As B operands, the first eight keys are words 0 and 2, the others words 1 and 3.
  /// `scales`: of the tile's keys, where blocks have some.
  static __device__ __forceinline__ void keys(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t) {
    const MatrixPlace place = a_operand_place(lane);
    ldmatrix(to[0], Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
  }

  /// Columns x keys as A operand. As B operands, the first eight columns are words 0 and 2, the others words 1 and 3;
  /// column() gives their numbers.
  static __device__ __forceinline__ void values(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t) {
    const MatrixPlace place = b_operand_place(lane);
    ldmatrix_trans(to[0], Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
  }

  /// The index-th column of the first or the second eight of a step.
  static __device__ constexpr int column(int step, int second, int index) { return 16 * step + 8 * second + index; }
};

/// Codes of 8 bits. In the 16 columns of a step, keys have 4t, 4t+1 in place of 2t, 2t+1, and 4t+2, 4t+3 in place of 2t+8, 2t+9. Queries
/// have the same order (query_place).
template <class Config>
struct Operands<Config, 8> {
  using Rows = CacheRows<Config>;
  using Codes = ByteCodes<typename Config::Cache>;
  static constexpr int kSteps = 2, kLoads = Config::kHeadDim / (16 * kSteps);
  using Fragments = std::uint32_t[kSteps][4];

  static __device__ __forceinline__ void keys(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t) {
    const MatrixPlace place = a_operand_place(lane);
    std::uint32_t codes[4];
    ldmatrix(codes, Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = Codes::prepared(codes[i]);
      to[i / 2][i % 2] = Codes::template neighbours<0>(word);
      to[i / 2][2 + i % 2] = Codes::template neighbours<1>(word);
    }
  }

  static __device__ __forceinline__ void values(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t) {
    const MatrixPlace place = a_operand_place(lane);
    std::uint32_t codes[4];
    ldmatrix_trans(codes, Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // of two keys, for each of two columns
      const std::uint32_t word = Codes::prepared(codes[i]);
      to[i / 2][i % 2 * 2] = Codes::template across<0>(word);
      to[i / 2][i % 2 * 2 + 1] = Codes::template across<1>(word);
    }
  }

  static __device__ constexpr int column(int step, int second, int index) { return 16 * step + 2 * index + second; }
  static __device__ constexpr int query_place(int column) {
    const int quad = column % 16 / 4, of_quad = column % 4;
    return column / 16 * 16 + of_quad / 2 * 8 + 2 * quad + of_quad % 2;
  }
};

/// Codes of 4 bits. A word has eight columns of a key, 8t to 8t+7 of 32: columns i and i + 4 are a pair, and two pairs make a step. A
/// transposed word has four columns, 4g to 4g+3, of two keys.
template <class Config>
struct Operands<Config, 4> {
  using Rows = CacheRows<Config>;
  using Codes = NibbleCodes<typename Config::Cache>;
  static constexpr int kSteps = 4, kLoads = Config::kHeadDim / (16 * kSteps);
  using Fragments = std::uint32_t[kSteps][4];

  static __device__ __forceinline__ void keys(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t scales) {
    const MatrixPlace place = a_operand_place(lane);
    std::uint32_t codes[4];
    ldmatrix(codes, Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i / 2 * 2][i % 2] = Codes::template halves<0>(codes[i]);
      to[i / 2 * 2][2 + i % 2] = Codes::template halves<1>(codes[i]);
      to[i / 2 * 2 + 1][i % 2] = Codes::template halves<2>(codes[i]);
      to[i / 2 * 2 + 1][2 + i % 2] = Codes::template halves<3>(codes[i]);
    }
    if constexpr (Config::Format::kBlockScales) {
      const unsigned selector = lane % 4 < 2 ? 0x1010 : 0x3232;  // the lane's columns lie in one of a chunk's two blocks
#pragma unroll
      for (int key = 0; key < 2; ++key) {
        const std::uint32_t four = load_shared_32(scales + (row + 8 * key + lane / 4) * Config::kKeyScales + 4 * load);
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          const std::uint32_t two = halves_from_e4m3(four >> (16 * chunk)), scale = __byte_perm(two, 0, selector);
#pragma unroll
          for (int step = 2 * chunk; step < 2 * chunk + 2; ++step) {
            to[step][key] = product(to[step][key], scale);
            to[step][2 + key] = product(to[step][2 + key], scale);
          }
        }
      }
    }
  }

  static __device__ __forceinline__ void values(Fragments& to, std::uint32_t tile, int row, int load, int lane, std::uint32_t scales) {
    const MatrixPlace place = a_operand_place(lane);
    std::uint32_t codes[4];
    ldmatrix_trans(codes, Rows::advanced(tile + static_cast<std::uint32_t>(Rows::offset(row + place.row, place.chunk)), 16 * load));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      to[i / 2 * 2][i % 2 * 2] = Codes::template halves<0>(codes[i]);
      to[i / 2 * 2][i % 2 * 2 + 1] = Codes::template halves<1>(codes[i]);
      to[i / 2 * 2 + 1][i % 2 * 2] = Codes::template halves<2>(codes[i]);
      to[i / 2 * 2 + 1][i % 2 * 2 + 1] = Codes::template halves<3>(codes[i]);
    }
    if constexpr (Config::Format::kBlockScales) {
      const unsigned block = lane / 16;  // of a chunk's two, the one of the lane's columns
#pragma unroll
      for (int keys = 0; keys < 2; ++keys) {
        const std::uint32_t at = scales + (row + 8 * keys + lane % 4 * 2) * Config::kKeyScales + 4 * load;
        const std::uint32_t first = load_shared_32(at), second = load_shared_32(at + Config::kKeyScales);
        const std::uint32_t all = __byte_perm(first, second, block ? 0x7351 : 0x6240);
#pragma unroll
        for (int chunk = 0; chunk < 2; ++chunk) {
          const std::uint32_t scale = halves_from_e4m3(all >> (16 * chunk));
#pragma unroll
          for (int step = 2 * chunk; step < 2 * chunk + 2; ++step) {
            to[step][2 * keys] = product(to[step][2 * keys], scale);
            to[step][2 * keys + 1] = product(to[step][2 * keys + 1], scale);
          }
        }
      }
    }
  }

  static __device__ constexpr int column(int step, int second, int index) { return step / 2 * 32 + 4 * index + step % 2 * 2 + second; }
  static __device__ constexpr int query_place(int column) {
    const int word = column % 32 / 8, index = column % 8;
    return column / 32 * 32 + index % 4 / 2 * 16 + index % 2 * 8 + 2 * word + index / 4;
  }
};

}  // namespace fovea::gpu::portable::paged_attention
