// SPDX-License-Identifier: Apache-2.0
/// Sizes and parameters of the kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fovea/indexer.hpp"
#include "op/common/division.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::gpu::sm90::indexer {

inline constexpr int kDim = 128;      ///< codes, and bytes, of a row
inline constexpr int kMmaRows = 64;   ///< keys of an MMA
inline constexpr int kMostRows = 32;  ///< queries of a group: one for each lane
inline constexpr int kLeastBox = 8;   ///< keys of a TMA box: a swizzle atom
inline constexpr int kMostBox = 64;

/// `kHeads`: of an MMA. A query with more has several steps.
template <int kHeads_>
struct Config {
  static constexpr int kHeads = kHeads_, kWarpgroups = 3;
  static constexpr bool kPaged = true;                          ///< or flat
  static constexpr int kMmas = 2;                               ///< along the keys of a warpgroup
  static constexpr int kKeys = kWarpgroups * kMmas * kMmaRows;  ///< of a stage, which is a work tile
  static constexpr int kThreads = 128 * (kWarpgroups + 1);      ///< the first warpgroup loads
  static constexpr int kLoadRegisters = 56, kMathRegisters = 152;
  static constexpr int kKeyBytes = kKeys * kDim, kQueryBytes = kHeads * kDim;
  static constexpr int kKeyStages = 2, kQueryStages = 8;
  /// Keys arrive while about one query is multiplied with them.
  static constexpr int stage_cost(int rows) { return rows + 1; }
};

/// A group has rows of one sequence. All rows of flat keys are one sequence.
struct Params {
  CUtensorMap q, k;
  IndexLogitsArgs args;  ///< those in use; null otherwise
  detail::IndexLogitsShape shape;
  detail::FastDivmod page, sequence_rows, sequence_groups;  ///< tokens of a page, queries of a sequence and groups of them
  int room;                                                 ///< columns that the block table has blocks for
  int groups, rows_of_group;                                ///< groups of all sequences; the most rows of one
  int ctas;
  std::uint32_t share;  ///< of a CTA, in parts of 2^32 of the line
  int box;              ///< keys of a TMA box, all of one page
  bool bf16_out;
};

}  // namespace fovea::gpu::sm90::indexer
