// SPDX-License-Identifier: Apache-2.0
/// Sizes and parameters of the kernel.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "fovea/indexer.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::gpu::sm90::indexer {

inline constexpr int kDim = 128;      ///< codes, and bytes, of a row
inline constexpr int kMmaRows = 64;   ///< keys of an MMA
inline constexpr int kMostRows = 32;  ///< queries of a work tile: one for each lane
inline constexpr int kLeastBox = 8;   ///< keys of a TMA box: a swizzle atom
inline constexpr int kMostBox = 64;

/// `kHeads`: of an MMA. A query with more has several steps.
template <int kHeads_>
struct Config {
  static constexpr int kHeads = kHeads_, kWarpgroups = 3;
  static constexpr int kMmas = 2;                               ///< along the keys of a warpgroup
  static constexpr int kKeys = kWarpgroups * kMmas * kMmaRows;  ///< of a work tile
  static constexpr int kThreads = 128 * (kWarpgroups + 1);      ///< the first warpgroup loads
  static constexpr int kLoadRegisters = 56, kMathRegisters = 152;
  static constexpr int kKeyBytes = kKeys * kDim, kQueryBytes = kHeads * kDim;
  static constexpr int kKeyStages = 2, kQueryStages = 8;
};

/// Work tiles are key tiles, of every group of rows. A group has rows of one sequence; all rows of flat keys are one sequence.
struct Params {
  CUtensorMap q, k;
  IndexLogitsArgs args;  ///< those in use; null otherwise
  detail::IndexLogitsShape shape;
  int work_tiles, key_tiles, keys_of_tile, rows_of_group, groups_of_sequence;
  int box;  ///< keys of a TMA box, all of one page
  bool bf16_out;
};

}  // namespace fovea::gpu::sm90::indexer
