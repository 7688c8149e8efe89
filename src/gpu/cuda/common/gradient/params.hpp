// SPDX-License-Identifier: Apache-2.0
/// Parameters that the kernels of a backward pass share: those of its MMAs, and prepare and finish before and after them.
#pragma once

#include "gpu/cuda/common/attention_params.hpp"

namespace fovea::gpu::gradient {

inline constexpr int kQueryTile = 64;  // rows of a RowStats

/// The query rows of a tile. A row without a gradient has an lse of plus infinity.
struct alignas(16) RowStats {
  float minus_lse[kQueryTile];  // with the sink's share; in base 2 unless `natural`
  float delta[kQueryTile];      // dout . out, less dlse
  int natural;                  // scores are rounded in base e, as an lse is so large
  int unused[3];
};

/// A tensor without a tensor map.
struct PlainRows {
  const void* data = nullptr;
  detail::RowStrides strides{};
};

/// Counts of tiles are those of the whole batch, gaps included (sequence.cuh).
struct GradientParams : AttentionParams {
  static constexpr bool kLists = false;  // a block mask lists tiles (lists.hpp)
  PlainRows lse;
  PlainRows dlse;  // null without dlse
  int kv_heads = 0;
  bool leaks = false;      // hidden keys, or rows that a sink or a bias leaves no weight, may make results NaN
  float* dsink = nullptr;  // [heads], or null
  int key_tile = 0;        // keys of a CTA that computes dk and dv
  int query_tiles = 0;
  int key_tiles = 0;
  int row_tiles = 0;  // of the queries of a CTA, where a kernel computes dq alone
  // Workspace.
  RowStats* stats = nullptr;      // [heads][query_tiles]
  float* sink_parts = nullptr;    // [heads][query_tiles], with sinks
  int* dq_not_finite = nullptr;   // [heads][query_tiles]
  int* dkv_not_finite = nullptr;  // [key tiles in the order of key_tile_at]
};

}  // namespace fovea::gpu::gradient
