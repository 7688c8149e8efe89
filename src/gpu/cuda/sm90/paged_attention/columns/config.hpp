// SPDX-License-Identifier: Apache-2.0
/// Parameters of exact decode of few sequences, and constants of its two kernels.
#pragma once

#include <cstdint>

#include "gpu/cuda/sm90/paged_attention/config.hpp"

namespace fovea::gpu::sm90::paged_attention::columns {

inline constexpr int kRows = 16;  // query rows of a kv head: those of an MMA of a warp
inline constexpr int kScoreThreads = 128;
inline constexpr int kValueStages = 2;  // key tiles of values that a softmax warp has in shared memory

/// A sequence and kv head is a cell.
struct Params : paged_attention::Params {
  bool transform = false;  ///< scores are softcapped, or their scale is negative
  int kv_heads = 0;
  int score_rows = 0;       ///< most query rows of a cell
  int key_tiles = 0;        ///< most key tiles of a sequence
  float* scores = nullptr;  ///< [cell][key tile][16 keys][row][lane of the row][4]
  int* ready = nullptr;     ///< [cell][key tile]: 1 once its scores are stored
  int* states = nullptr;    ///< [cell][2]: rows that are not finite, and CTAs that have stored their columns

  constexpr int score_words(int key_tile) const { return key_tile * score_rows; }
};

/// Launches the kernel of scores, and after it the one of values, whose CTAs have 8 `groups` columns each.
template <class Element>
CudaStatus launch_columns(const Params& params, int kernel, int groups, int ctas_of_cell, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::paged_attention::columns
