// SPDX-License-Identifier: Apache-2.0
/// Bits of a partial block's pairs, in the registers of a warp.
#pragma once

#include <cstdint>
#include <type_traits>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/gradient/query_bits.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Rows are queries: the words of a lane's rows.
template <int kBlocks, int kColumns>
struct RowBits {
  static constexpr int kWords = kColumns / 32;
  bool partial;
  std::uint32_t words[kBlocks][2][kWords];

  /// `bits`: the word of the CTA's first row and of the tile's first column, or null. `row_words`: from one query to the next.
  __device__ __forceinline__ void load(const std::int32_t* bits, int row_words, int warp_row) {
    partial = bits != nullptr;
    if (!partial) return;
    const int row = warp_row + lane_row(static_cast<int>(threadIdx.x) % 32);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int w = 0; w < kWords; ++w) {
          words[b][r][w] = static_cast<std::uint32_t>(__ldg(bits + (row + 16 * b + 8 * r) * row_words + w));
        }
      }
    }
  }
  /// Zeroes pairs of a block of rows whose bits are 0.
  template <int kScores>
  __device__ __forceinline__ void keep(int block, float (&p)[kScores], float (&ds)[kScores]) const {
    if (!partial) return;
    const int first = lane_column(static_cast<int>(threadIdx.x) % 32);
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const std::uint32_t word = words[block][row_of(i)][column_of(i) / 32] >> first;
      if ((word >> column_of(i) % 32 & 1) == 0) p[i] = ds[i] = 0;
    }
  }
};

/// Rows are keys.
template <int kColumns>
struct ColumnBits : gradient::QueryBits<kColumns> {
  using Words = gradient::QueryBits<kColumns>;

  __device__ __forceinline__ void load(const std::int32_t* bits, int row_words, int warp_row) {
    Words::load(bits, row_words, warp_row, lane);
  }
  template <int kScores>
  __device__ __forceinline__ void keep(int block, float (&p)[kScores], float (&ds)[kScores]) const {
    Words::keep(16 * block, lane, [&](int i) { p[i] = ds[i] = 0; });
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
};

struct NoBits {};

template <class Config>
using BitsOf = std::conditional_t<
    Config::kLists, std::conditional_t<Config::kRowsAreQueries, RowBits<Config::kBlocks, Config::kColumns>, ColumnBits<Config::kColumns>>,
    NoBits>;

}  // namespace fovea::gpu::portable::attention_backward
