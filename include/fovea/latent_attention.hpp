// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/cache_format.hpp"
#include "fovea/mask.hpp"
#include "fovea/plan.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// A cache of latent rows. A row of 576 is 512 latent values and 64 rotary ones; a row of 512 has no separate rotary part. K is the
/// whole row, V its first 512 values.
struct LatentCacheDesc {
  CacheFormat format = CacheFormat::rows;
  TensorDesc rows{};              ///< format rows: [blocks, page, kv_head, 576 or 512] in f32 (CPU), f16, bf16 or e4m3
  std::int64_t blocks = 0;        ///< packed formats (one kv head)
  std::int64_t page = 0;          ///< packed formats
  std::int64_t block_stride = 0;  ///< packed formats: bytes from block to block, at least page * bytes; 0 means exactly that
  std::int32_t alignment = 0;     ///< packed formats: bytes to which the pointer given to run() will be aligned; 0 promises none
};

/// Dense MLA decode over a block-table cache of latent rows (MQA: all heads of a group share one row).
///
/// q [batch, seq_q, head, d], or ragged [total_q, head, d] with cu_seqlens_q; out like q with 512 values; lse [batch, head, seq_q] or
/// [total_q, head]; block_table i32 [batch, max_blocks]. d is 576 or 512, as the cache's rows. Rows of no sequence as in AttentionDesc.
/// Any head count that kv_head divides, any page size, any query length; kv_len 0 gives out = 0 and lse = -inf. Queries are the last rows
/// of their sequence. q is f32 (CPU), f16 or bf16; plain caches have q's dtype or are e4m3 with one f32 scale; packed caches go under bf16.
///
/// Hopper's kernel takes f16 and bf16 and a positive scale. Rows of q, out and cache, or blocks of a packed cache, must lie at multiples of
/// 16 bytes, and the alignments must promise so. Packed caches, listed tokens and pages that are not multiples of 8 have another limit:
/// from its first block to its last, gaps included, a cache has fewer than 2^32 units. A unit is the greatest common divisor of the strides
/// of blocks and tokens, and at least 16 bytes (64 GiB). It is one token's size if blocks follow each other at multiples of that.
/// Source: DeepSeek-V2 (2024), section 2.1, with the up-projections absorbed into q and out.
struct LatentAttentionDesc {
  TensorDesc q{}, out{}, block_table{};
  LatentCacheDesc cache{};
  std::optional<TensorDesc> lse{};
  std::int64_t max_seq_q = 0;   ///< ragged: bound of every q_len; 0, or more than there are, means total_q
  std::int64_t max_kv_len = 0;  ///< bound of every kv_len; 0, or more than fit, means max_blocks * page
  BandMask mask = causal();
  float scale = 0.0f;      ///< 0 means d ** -0.5; models usually want (192) ** -0.5
  bool has_scale = false;  ///< e4m3 rows: args.cache_scale points to one f32
};

struct LatentAttentionArgs {
  const void* q = nullptr;
  const void* cache = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const std::int32_t* block_table = nullptr;
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1], ragged only
  const std::int32_t* kv_len = nullptr;        ///< [batch]
  const float* cache_scale = nullptr;
};

using LatentAttentionPlan = Plan<LatentAttentionArgs>;

/// Errors: as plan_paged_attention.
Result<LatentAttentionPlan> plan_latent_attention(const LatentAttentionDesc& desc, Device device = {}, const PlanOptions& options = {});

/// Token-sparse MLA: every query row lists the tokens that it reads.
///
/// Flat (prefill): q [seq_q, head, d], out [seq_q, head, 512], lse and max_logits [seq_q, head], indices i32 [seq_q, topk],
/// topk_length i32 [seq_q]. A flat kv tensor [seq_kv, d] is a cache of one block with page = seq_kv.
/// Paged (decode): q [batch, seq_q, head, d], out likewise, lse and max_logits [batch, head, seq_q], indices i32 [batch, seq_q, topk],
/// topk_length i32 [batch].
///
/// index = physical_block * page + slot. Indices outside the cache are ignored, and so are those past topk_length. An index that occurs
/// twice counts twice. A second cache (`extra`), with a page size, indices and lengths of its own, joins the same softmax. max_logits is
/// the row maximum of s in natural units, -inf when nothing is visible; a NaN does not count. lse excludes the sink.
/// V is the first 512 values of the decoded row. Source: DeepSeek Sparse Attention (DeepSeek-V3.2, 2025).
struct SparseLatentAttentionDesc {
  struct Selection {
    LatentCacheDesc cache{};
    TensorDesc indices{};
    bool has_topk_length = false;
  };
  TensorDesc q{}, out{};
  Selection main{};
  std::optional<Selection> extra{};
  std::optional<TensorDesc> lse{}, max_logits{};
  float scale = 0.0f;  ///< 0 means d ** -0.5
  bool has_sink = false;
};

struct SparseLatentAttentionArgs {
  struct Selection {
    const void* cache = nullptr;
    const std::int32_t* indices = nullptr;
    const std::int32_t* topk_length = nullptr;
  };
  const void* q = nullptr;
  void* out = nullptr;
  Selection main{}, extra{};
  float* lse = nullptr;
  float* max_logits = nullptr;
  const float* sink = nullptr;  ///< [head]
};

using SparseLatentAttentionPlan = Plan<SparseLatentAttentionArgs>;

Result<SparseLatentAttentionPlan> plan_sparse_latent_attention(const SparseLatentAttentionDesc& desc, Device device = {},
                                                               const PlanOptions& options = {});

/// How a quantiser chooses the scale of a group from its largest magnitude. Formats with ue8m0 scales round it up to a power of two in
/// either mode. fp4 takes amax / 6 in either mode, rounded to the nearest e4m3: groups below about 0.006 become zeros, and values saturate
/// at 2688.
enum class ScaleRule : std::uint8_t {
  power_of_two,  ///< 2 ^ ceil(log2(max(amax / 448, 1e-4)))
  exact,         ///< amax / 448, 1 for a group of zeros
};

/// Packs latent rows into slots of a packed cache (slot = block * page + position; -1 skips), or unpacks slots into rows.
///
/// quantize: rows [tokens, d] in f32, f16 or bf16 -> cache. dequantize: cache -> rows, where a skipped slot leaves its row untouched.
/// slot_mapping i64 [tokens]: on the CPU a slot outside the cache is an error, on a device it is skipped. A dequantised value is
/// code * scale in f32, rounded once to the dtype of the rows.
struct LatentCacheConversionDesc {
  TensorDesc rows{};
  LatentCacheDesc cache{};
  ScaleRule rule = ScaleRule::power_of_two;  ///< quantize only
};

struct QuantizeLatentCacheArgs {
  const void* rows = nullptr;
  void* cache = nullptr;
  const std::int64_t* slot_mapping = nullptr;
};

struct DequantizeLatentCacheArgs {
  void* rows = nullptr;
  const void* cache = nullptr;
  const std::int64_t* slot_mapping = nullptr;
};

using QuantizeLatentCachePlan = Plan<QuantizeLatentCacheArgs>;
using DequantizeLatentCachePlan = Plan<DequantizeLatentCacheArgs>;

Result<QuantizeLatentCachePlan> plan_quantize_latent_cache(const LatentCacheConversionDesc& desc, Device device = {},
                                                           const PlanOptions& options = {});
Result<DequantizeLatentCachePlan> plan_dequantize_latent_cache(const LatentCacheConversionDesc& desc, Device device = {},
                                                               const PlanOptions& options = {});

}  // namespace fovea
