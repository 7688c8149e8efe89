// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the kernels of the backward pass.
#pragma once

#include <cstdint>

#include "fovea/mask.hpp"
#include "gpu/cuda/common/gradient/tiles.hpp"
#include "gpu/cuda/sm90/clipped_rows.hpp"

namespace fovea::gpu::sm90::attention_backward {

using namespace gradient;

inline constexpr int kWarpgroupKeys = 64;  // whose dk and dv are stored by a warpgroup

struct Params {
  static constexpr bool kInTurns = true;  // key tiles may add to dq one after the other
  ClippedRows q, k, v, dout, dq, dk, dv;
  ClippedRows dq_k, dq_v;  // k and v for the kernel of dq, where it is apart: its key tiles are others
  PlainRows out, lse;
  int batch = 0, seq_q = 0, seq_k = 0;  // bounds of a ragged batch
  int heads = 0, kv_heads = 0, heads_per_kv = 1;
  int head_dim_qk = 0, head_dim_v = 0;
  const std::int32_t *cu_seqlens_q = nullptr, *cu_seqlens_k = nullptr;  // [batch + 1], of a ragged batch
  BandMask mask{};
  int group = 128;                     // GradientOrder
  bool leaks = false;                  // a product may multiply what a row does not see
  float scale = 1;                     // of scores, and of dq and dk
  float scale_log2 = 0;                // with log2(e)
  float softcap = 0;                   // or 0
  float inv_softcap = 0;               // 2 log2(e) scale / softcap
  const float* sink = nullptr;         // [heads], or null
  float* dsink = nullptr;              // [heads], or null
  int key_tile = 0;                    // keys of a CTA that computes dk and dv
  int query_tiles = 0, key_tiles = 0;  // of the whole batch, gaps included
  int row_tiles = 0;                   // of 128 queries: the CTAs of a kernel of dq that is apart
  // The workspace.
  RowStats* stats = nullptr;      // [heads][query_tiles]
  float* sink_parts = nullptr;    // [heads][query_tiles], where there are sinks
  float* dq_sums = nullptr;       // [heads][query_tiles][query tile x padded head dim], in the order of registers
  int* turns = nullptr;           // [heads][query_tiles]: key tiles that have added to dq_sums; neither where dq is apart
  int* dq_not_finite = nullptr;   // [heads][query_tiles]
  int* dkv_not_finite = nullptr;  // [key tiles in order of their tickets]
  int* ticket = nullptr;          // of the next key tile
  PlainRows dlse;                 // of a call with one
};

}  // namespace fovea::gpu::sm90::attention_backward
