// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/kv_format.hpp"
#include "fovea/mask.hpp"
#include "fovea/packed_mask.hpp"
#include "fovea/plan.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// Attention over a block-table cache: prefill, decode and any mix of both in one call.
///
/// q [total_q, head, dqk] ragged by cu_seqlens_q; k_cache [blocks, page, kv_head, dqk] and v_cache [blocks, page, kv_head, dv], two
/// independent views with free block, token and head strides; block_table i32 [batch, max_blocks], contiguous rows, free row stride;
/// out [total_q, head, dv]; lse [total_q, head]; rows that no sequence has are left alone, as in AttentionDesc.
/// Token t of sequence b lies in block `block_table[b][t / page]`, slot `t % page`. Query row r of a sequence sits at position
/// `kv_len - q_len + r`: the mask is anchored bottom-right (top_left is refused).
///
/// dtypes: q f32 (CPU), f16 or bf16; caches of q's dtype, or e4m3 with f32 scales under any q. out has the dtype of q.
/// Formats: k_format and v_format, which may differ, say what codes are and where scales lie (kv_format.hpp). The last dimension of such a
/// cache is bytes of codes, dtype i8 (any codes) or e4m3; dv is that of out. Codes are converted exactly, and a product with a scale is
/// rounded once to the dtype of q, or not at all.
/// Any page size from 1. Head dims, GQA, rows without keys, lse and sink as in AttentionDesc.
/// Entries of the block table that no visible key needs are never read as block numbers, and unused slots never matter.
/// Source of the layout: PagedAttention (Kwon et al. 2023).
struct PagedAttentionDesc {
  TensorDesc q{}, k_cache{}, v_cache{}, block_table{}, out{};
  std::optional<TensorDesc> lse{};
  std::int64_t max_seq_q = 0;   ///< bound of every q_len; 0, or more than there are, means total_q
  std::int64_t max_kv_len = 0;  ///< bound of every kv_len; 0, or more than fit, means max_blocks * page
  BandMask mask = causal();
  float scale = 0.0f;    ///< 0 means head_dim_qk ** -0.5
  float softcap = 0.0f;  ///< 0 means none
  bool has_sink = false;
  std::optional<ScaleDesc> k_scale{}, v_scale{};  ///< e4m3 caches, e5m2 and nvfp4 only; absent means 1
  std::optional<PackedMaskDesc> packed_mask{};    ///< beside `mask`; bits excuse no entry of the block table
  KvFormat k_format = KvFormat::rows, v_format = KvFormat::rows;
  /// [blocks, page, kv_head] or [blocks, page, kv_head, head_dim / group], as the format says; free strides.
  std::optional<TensorDesc> k_scale_cache{}, v_scale_cache{};
};

struct PagedAttentionArgs {
  const void* q = nullptr;
  const void* k_cache = nullptr;
  const void* v_cache = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const float* sink = nullptr;                 ///< [head]
  const std::int32_t* block_table = nullptr;   ///< [batch, max_blocks]
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1]
  const std::int32_t* kv_len = nullptr;        ///< [batch]; tokens in the cache, those of this call's queries included
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  const std::uint8_t* packed_mask = nullptr;
  const std::int32_t* mask_indptr = nullptr;  ///< [batch + 1], as packed_mask.hpp says
  const void* k_scale_cache = nullptr;
  const void* v_scale_cache = nullptr;
};

using PagedAttentionPlan = Plan<PagedAttentionArgs>;

/// Errors: as plan_attention. On the CPU run() also reports lengths and (where a visible key needs them) block numbers that are out of
/// range. On a device lengths are cut to their bounds, and rows that see a key of such a block become NaN.
Result<PagedAttentionPlan> plan_paged_attention(const PagedAttentionDesc& desc, Device device = {}, const PlanOptions& options = {});

/// Writes new K and V rows into the cache: row t goes to block `slot / page`, slot `slot % page`, slot = slot_mapping[t]; -1 skips the row.
///
/// k [tokens, kv_head, dqk], v [tokens, kv_head, dv], caches as above, slot_mapping i64 [tokens].
/// Caches have the dtype of k and v, or are e4m3: then code = e4m3(value / scale), rounded to nearest even, saturated at +-448; NaN stays
/// NaN. Formats as in PagedAttentionDesc; their quantisers:
///   int8_token, e4m3_token   scale = max(amax / 127 or 448, 1e-6) of a row
///   int4_token               scale = max((max - min) / 15, 1e-6) of a row and 0, zero = round(-min / scale)
///   nvfp4                    scale = e4m3(amax / 6 / k_scale) of 16 values; where it is 0, codes are 0
///   mxfp4, mxfp8             scale = the power of two at or above amax / 6 or 448 of 32 values; 1 of zeros
/// No scale is infinite or NaN: magnitudes count up to half the largest float, NaN not at all. A code is the nearest one, ties to even;
/// what is too large saturates; NaN becomes the code for NaN, or the largest code where there is none. Slots outside the cache other than
/// -1 are an error where they can be seen (CPU) and skipped where not. If two rows have one slot, each element is of either.
struct PagedCacheAppendDesc {
  TensorDesc k{}, v{}, k_cache{}, v_cache{};
  std::optional<ScaleDesc> k_scale{}, v_scale{};  ///< e4m3 caches, e5m2 and nvfp4 only; absent means 1
  KvFormat k_format = KvFormat::rows, v_format = KvFormat::rows;
  std::optional<TensorDesc> k_scale_cache{}, v_scale_cache{};
};

struct PagedCacheAppendArgs {
  const void* k = nullptr;
  const void* v = nullptr;
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  const std::int64_t* slot_mapping = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  void* k_scale_cache = nullptr;
  void* v_scale_cache = nullptr;
};

using PagedCacheAppendPlan = Plan<PagedCacheAppendArgs>;

Result<PagedCacheAppendPlan> plan_paged_cache_append(const PagedCacheAppendDesc& desc, Device device = {}, const PlanOptions& options = {});

}  // namespace fovea
