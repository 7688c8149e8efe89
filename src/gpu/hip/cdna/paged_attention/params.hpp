// SPDX-License-Identifier: Apache-2.0
/// The arguments of the kernels.
#pragma once

#include <cstdint>

#include "fovea/mask.hpp"
#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// Dense attention has no block table: a sequence is a block. Where lengths are null, all sequences have as many rows, and the
/// strides of a batch.
struct Params {
  const void* q = nullptr;                             // (total_q, head, dqk), or (batch, seq_q, head, dqk)
  const void* k_cache = nullptr;                       // (block, page, kv_head, dqk)
  const void* v_cache = nullptr;                       // (block, page, kv_head, dv)
  void* out = nullptr;                                 // as q, with dv
  float* lse = nullptr;                                // (total_q, head), or null
  const float* sink = nullptr;                         // (head), or null
  const float *k_scale = nullptr, *v_scale = nullptr;  // (kv_head) at their strides, or null
  const std::int32_t* block_table = nullptr;           // (batch, max_blocks), or null
  const std::int32_t* cu_seqlens_q = nullptr;          // (batch + 1), or null
  const std::int32_t* cu_seqlens_k = nullptr;          // (batch + 1) of dense attention, or null
  const std::int32_t* kv_len = nullptr;                // (batch) of paged attention
  detail::RowStrides q_strides{}, out_strides{}, lse_strides{};
  detail::CacheStrides k{}, v{};
  std::int64_t table_stride = 0, k_scale_stride = 0, v_scale_stride = 0;
  int batch = 0, seq_q = 0, seq_k = 0;  ///< the last two are bounds
  int kv_heads = 0, head_dim_qk = 0, head_dim_v = 0;
  detail::FastDivmod group{}, page{};
  bool general = true;  ///< false: head dims are those of the tile, pages hold fours of tokens, and strides fit 32 bits
  BandMask mask{};
  float scale = 1, softcap = 0;  ///< softcap 0: none
  int splits = 1;
  float* partials = nullptr;  // (query tile, kv_head, split, row wave) of a wave's State, where splits > 1
  int* counters = nullptr;    // (query tile, kv_head, row wave): splits that are stored
};

/// Arguments of the kernel that sets counters to 0.
struct ClearParams {
  int* counters = nullptr;
  int count = 0;
};
inline constexpr int kClearThreads = 256;

}  // namespace fovea::gpu::cdna::paged_attention
