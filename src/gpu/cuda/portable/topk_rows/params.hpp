// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernels.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::topk {

inline constexpr int kThreads = 512;
inline constexpr int kCapacity = 4096;  ///< candidates that a CTA holds
inline constexpr int kMostK = 2048;     ///< at least as many are free after a cut
inline constexpr int kBins = 2048;      ///< of a histogram
inline constexpr int kElementsOfThread = 16;
inline constexpr int kSample = 2048;        ///< columns that the first threshold is guessed from
inline constexpr int kLeastToGuess = 8192;  ///< columns
inline constexpr int kCtasOfSm = 2;

/// A candidate: the order of its value, and below that the column, inverted. 0 is none.
using Key = unsigned long long;

/// Strides count elements.
struct Params {
  const void* logits;                         // (row, column)
  std::int32_t* out;                          // (row, k)
  Key* partial;                               // (row, part, k): the best of each part of a row; null if rows have one
  const std::int32_t *first, *last, *offset;  // (row); null: 0, columns, 0
  const std::int32_t* block_table;            // (batch, max_blocks); null: places stay as they are
  std::int64_t row_stride, out_stride, columns;
  std::int64_t table_stride, max_blocks, page;
  unsigned k;
  int parts, rows_of_sequence;
  bool sorted;
};

}  // namespace fovea::gpu::portable::topk
