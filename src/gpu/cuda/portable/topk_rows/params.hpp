// SPDX-License-Identifier: Apache-2.0
/// The parameters of the kernels.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::topk {

inline constexpr int kThreads = 512;
inline constexpr int kCapacity = 4096;      ///< candidates that a CTA holds
inline constexpr int kMostK = 2048;         ///< at least as many are free after a cut
inline constexpr int kBins = 2048;          ///< of a histogram
inline constexpr int kFew = 128;            ///< keys that are ranked by comparing each with each
inline constexpr int kLeastToGuess = 8192;  ///< columns
inline constexpr int kPackBytes = 16;
inline constexpr int kMostRingPacks = 8;  ///< of a thread
inline constexpr int kMostSlots = 4;      ///< tiles

/// CTAs that a multiprocessor runs at once.
constexpr int ctas_of_multiprocessor(int capability) { return capability >= 80 ? 2 : 1; }
/// Packs that a thread asks at once, in code for a target. With one, the rings of two CTAs fit into 100 KiB.
constexpr int packs_of_tile(int target) { return target >= 90 && target < 120 ? 4 : target >= 80 ? 1 : 2; }

/// A candidate: the order of its value, and below that its place, inverted. 0 is none.
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
  unsigned k, parts, rows_of_sequence, element_bytes;
  int ring_packs;  // of a thread, that the ring of its CTA holds
  bool sorted;
};

}  // namespace fovea::gpu::portable::topk
