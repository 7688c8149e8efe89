// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the kernels of the backward pass.
#pragma once

#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/common/gradient/tiles.hpp"

namespace fovea::gpu::portable::attention_backward {

using namespace gradient;

struct Tensor : PlainRows {
  bool aligned = false;  // every row, to 16 bytes
};

struct Params {
  static constexpr bool kOrderedDq = false;  // no two CTAs add to the same gradient
  Tensor q, k, v, out, dout, dq, dk, dv;
  PlainRows lse;
  int batch = 0, seq_q = 0, seq_k = 0;  // bounds of a ragged batch
  int heads = 0, kv_heads = 0, heads_per_kv = 1;
  int head_dim_qk = 0, head_dim_v = 0;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;  // [batch + 1], of a ragged batch
  BandMask mask{};
  bool leaks = false;                  // a product may multiply what a row does not see
  float scale = 1;                     // of scores, and of dq and dk
  float scale_log2 = 0;                // with log2(e)
  float softcap = 0;                   // or 0
  float inv_softcap = 0;               // 2 log2(e) scale / softcap
  const float* sink = nullptr;         // [heads], or null
  float* dsink = nullptr;              // [heads], or null
  int key_tile = 0;                    // keys of a CTA that computes dk and dv
  int query_tiles = 0, key_tiles = 0;  // of the whole batch, gaps included
  int row_tiles = 0;                   // of the queries of a CTA that computes dq
  // The workspace.
  RowStats* stats = nullptr;      // [heads][query_tiles]
  float* sink_parts = nullptr;    // [heads][query_tiles], where there are sinks
  int* dq_not_finite = nullptr;   // [heads][query_tiles]
  int* dkv_not_finite = nullptr;  // [key tiles in the order of key_tile_at]
  PlainRows dlse;                 // of a call with one
};

}  // namespace fovea::gpu::portable::attention_backward
