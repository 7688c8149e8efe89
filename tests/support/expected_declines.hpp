// SPDX-License-Identifier: Apache-2.0
/// Which implementation declines which case, and with what words. Any other decline is a failure, and so is a case listed here that is not
/// declined.
#pragma once

#include <cstdlib>
#include <string_view>

#include "trial.hpp"

namespace fovea::check {

/// The case's name contains this, or ends with it ("-page1$"). The last match counts.
struct ExpectedDecline {
  std::string_view implementation, part, reason;
};

inline constexpr std::string_view kSm90Attention = "cuda.sm90.attention", kSm90E4m3 = "cuda.sm90.attention_e4m3";
inline constexpr std::string_view kSm90Blocks = "cuda.sm90.block_attention";
inline constexpr std::string_view kSm100Attention = "cuda.sm100.attention";
inline constexpr std::string_view kSm90Backward = "cuda.sm90.attention_backward";
inline constexpr std::string_view kPortableAttention = "cuda.portable.attention";
inline constexpr std::string_view kPortableBackward = "cuda.portable.attention_backward";
inline constexpr std::string_view kPortablePaged = "cuda.portable.paged_attention";
inline constexpr std::string_view kSm90Paged = "cuda.sm90.paged_attention", kSm90Mixed = "cuda.sm90.paged_attention_mixed";
inline constexpr std::string_view kSm90Latent = "cuda.sm90.latent_attention", kSm90Sparse = "cuda.sm90.sparse_latent_attention";
inline constexpr std::string_view kPortableLatent = "cuda.portable.latent_attention";
inline constexpr std::string_view kPortableSparse = "cuda.portable.sparse_latent_attention";
inline constexpr std::string_view kSm90Indexer = "cuda.sm90.index_logits";
inline constexpr std::string_view kSm90Quantized = "cuda.sm90.quantized_attention";
inline constexpr std::string_view kCdnaPaged = "hip.cdna.paged_attention", kCdnaAttention = "hip.cdna.attention";
inline constexpr std::string_view kCdnaLatent = "hip.cdna.latent_attention";
inline constexpr std::string_view kAmxQuantized = "cpu.amx.quantized_attention", kAmxWhole = "cpu.amx.quantize_and_attend";
inline constexpr std::string_view kPast192 = "want at most 192 and 128";
inline constexpr std::string_view kNoLists = "_block_indices: got a value";
inline constexpr ExpectedDecline kExpectedDeclines[]{
    {kSm90Indexer, "head_dim/64", "q.shape[2] (head_dim): got 64"},
    {kSm90Indexer, "gaps/unaligned", "q (alignment of rows in bytes)"},
    {kSm90Indexer, "paged/page1$", "k.shape[1] (page): got 1"},
    {kCdnaPaged, "/f32-", "q.dtype: got f32"},
    {kCdnaAttention, "/f32-", "q.dtype: got f32"},
    {kCdnaAttention, "/e4m3-", "q_scale: got a value"},
    {kCdnaAttention, "scales/one-", "q_scale: got a value"},
    {kCdnaAttention, "scales/negative-", "q_scale: got a value"},
    {kCdnaAttention, "scales/per-head-", "q_scale: got a value"},
    {kCdnaAttention, "scales/none-", "q.dtype: got e4m3"},
    {kCdnaLatent, "/f32-", "q.dtype: got f32"},
    {kCdnaLatent, "v4_fp8", "cache.format: got v4_fp8"},
    {kCdnaLatent, "v41_fp8", "cache.format: got v41_fp8"},
    {kSm90Attention, "-odd-rows", "want a multiple of 16"},
    {kSm90Attention, "-unaligned", "want a multiple of 16"},
    {kSm90Attention, "/f32-", "q.dtype: got f32"},
    {kSm90Attention, "/e4m3-", "q_scale: got a value"},
    {kSm90Attention, "scales/one-", "q_scale: got a value"},
    {kSm90Attention, "scales/negative-", "q_scale: got a value"},
    {kSm90Attention, "scales/per-head-", "q_scale: got a value"},
    {kSm90Attention, "scales/none-", "q.dtype: got e4m3"},
    {kSm100Attention, "attention/head_dim/bf16-256x256", kPast192},
    {kSm100Attention, "attention/head_dim/f16-256x256", kPast192},
    {kSm100Attention, "attention/tiles/bf16-256x", kPast192},
    {kSm100Attention, "attention/tiles/f16-256x", kPast192},
    {kSm100Attention, "loud-nan-tail-256x256", kPast192},
    {kSm100Attention, "-8x256", kPast192},
    {kSm100Attention, "-scale3e38", "scale: got"},
    {kSm100Attention, "-248x16", kPast192},
    {kSm100Attention, "-192x192", kPast192},
    {kSm100Attention, "-128x192", kPast192},
    {kSm100Attention, "-odd-rows", "want a multiple of 16"},
    {kSm100Attention, "-unaligned", "want a multiple of 16"},
    {kSm100Attention, "/f32-", "q.dtype: got f32"},
    {kSm100Attention, "/e4m3-", "q_scale: got a value"},
    {kSm100Attention, "scales/one-", "q_scale: got a value"},
    {kSm100Attention, "scales/negative-", "q_scale: got a value"},
    {kSm100Attention, "scales/per-head-", "q_scale: got a value"},
    {kSm100Attention, "scales/none-", "q.dtype: got e4m3"},
    {kSm100Attention, "attention/blocks/", kNoLists},
    {kSm100Attention, "attention/score_bias/", ": got a value"},
    {kSm100Attention, "packed_mask/", "packed_mask: got a value"},
    {kSm100Attention, "attention/wide/", kPast192},
    {kSm100Attention, "attention/wide/e4m3-", "q_scale: got a value"},
    {kSm100Attention, "attention/wide/f32-", "q.dtype: got f32"},
    {kSm100Attention, "softcap", "softcap: got a value"},
    {kSm90E4m3, "-odd-rows", "want a multiple of 16"},
    {kSm90E4m3, "-unaligned", "want a multiple of 16"},
    {kSm90E4m3, "/e4m3-8x", "want a multiple of 16"},
    {kSm90E4m3, "/e4m3-24x", "want a multiple of 16"},
    {kSm90E4m3, "/e4m3-40x", "want a multiple of 16"},
    {kSm90E4m3, "/e4m3-120x", "want a multiple of 16"},
    {kSm90E4m3, "/e4m3-248x", "want a multiple of 16"},
    {kSm90Backward, "-padded", "want a multiple of 16"},
    {kSm90Backward, "dlse/f16-sink", "dlse: got with a sink in f16"},
    {kSm90Backward, "dlse/f16-192x128", "dlse: got with a sink in f16"},
    {kSm90Backward, "dlse/f16-ragged-padded-sink", "dlse: got with a sink in f16"},
    {kSm90Backward, "/f32-", "q.dtype: got f32"},
    {kSm90E4m3, "/f32-", "q.dtype: got f32"},
    {kSm90E4m3, "/f16-", "q.dtype: got f16"},
    {kSm90E4m3, "/bf16-", "q.dtype: got bf16"},
    {kSm90Attention, "-softcap4000", "softcap: got 4000, want at most 1024"},
    {kSm90Attention, "-softcap4e37", "softcap: got 3.99999997e+37, want at most 1024"},
    {kSm90Attention, "-softcap3e38", "want at most 1024"},
    {kSm90Backward, "softcap/bf16-4e37", "want at most 1024"},
    {kSm90Backward, "softcap/f16-4e37", "want at most 1024"},
    {kPortableAttention, "/f32-", "q.dtype: got f32"},
    {kPortableAttention, "/e4m3-", "q_scale: got a value"},
    {kPortableAttention, "scales/one-", "q_scale: got a value"},
    {kPortableAttention, "scales/negative-", "q_scale: got a value"},
    {kPortableAttention, "scales/per-head-", "q_scale: got a value"},
    {kPortableAttention, "scales/none-", "q.dtype: got e4m3"},
    {kPortableBackward, "/f32-", "q.dtype: got f32"},
    {kPortablePaged, "/f32-", "q.dtype: got f32"},
    {kSm90Paged, "-odd-rows", "want a multiple of 16"},
    {kSm90Paged, "-unaligned", "want a multiple of 16"},
    {kSm90Paged, "-page1$", "k_cache.shape[1] (page): got 1, want a multiple of 8"},
    {kSm90Paged, "-page3$", "k_cache.shape[1] (page): got 3, want a multiple of 8"},
    {kSm90Paged, "/e4m3-", "k_scale: got a value"},
    {kSm90Paged, "-on-e4m3-", "k_scale: got a value"},
    {kSm90Paged, "scales/one", "k_scale: got a value"},
    {kSm90Paged, "scales/none", "k_cache.dtype: got e4m3"},
    {kSm90Paged, "-softcap4000", "softcap: got 4000, want at most 1024"},
    {kSm90Paged, "bf16-split-sharp-softcap4e37", "want at most 1024"},
    {kSm90Paged, "/f32-", "q.dtype: got f32"},
    {kSm90Paged, "/f32-on-e4m3-", "k_scale: got a value"},
    {"cuda.portable.quantize_qk_int8", "dtype/f32", "q.dtype: got f32"},
    {"cuda.portable.quantize_v", "dtype/f32", "v.dtype: got f32"},
    {"cuda.portable.quantize_and_attend", "dtype/f32", "q.dtype: got f32"},
    {kAmxQuantized, "head_dim/96", "head_dim: got 96"},
    {kAmxQuantized, "gate/d96", "head_dim: got 96"},
    {kAmxQuantized, "dtype/f16-f16", "out.dtype: got f16"},
    {kAmxQuantized, "dtype/f32", "out.dtype: got f32"},
    {kAmxQuantized, "-negative-f16-f16", "out.dtype: got f16"},
    {kAmxWhole, "head_dim/96", "head_dim: got 96"},
    {kAmxWhole, "gate/d96", "head_dim: got 96"},
    {kAmxWhole, "dtype/f16-f16", "out.dtype: got f16"},
    {kAmxWhole, "dtype/f32", "out.dtype: got f32"},
    {kAmxWhole, "-negative-f16-f16", "out.dtype: got f16"},
    {kSm90Quantized, "layout/odd-rows", "want a multiple of 16"},
    {kSm90Quantized, "head_dim/256", "q.shape (head_dim): got 256"},
    {kPortableLatent, "/f32-", "q.dtype: got f32"},
    {kPortableLatent, "packed/v32_fp8-odd-rows", "want a multiple of 16"},
    {kPortableSparse, "/f32-", "q.dtype: got f32"},
    {kPortableSparse, "_fp8-odd-rows", "want a multiple of 16"},
    {kSm90Latent, "/f32-", "q.dtype: got f32"},
    {kSm90Latent, "scale/bf16-negative", "scale: got a negative one"},
    {kSm90Latent, "-odd-rows", "want a multiple of 16"},
    {kSm90Sparse, "/f32-", "q.dtype: got f32"},
    {kSm90Sparse, "scale/bf16-negative", "scale: got a negative one"},
    {kSm90Sparse, "-odd-rows", "want a multiple of 16"},
    {kCdnaPaged, "wide/bf16-", "want at most 256"},
    {kCdnaPaged, "wide/f16-", "want at most 256"},
    {kCdnaAttention, "wide/bf16-", "want a multiple of 8 up to 256"},
    {kCdnaAttention, "wide/f16-", "want a multiple of 8 up to 256"},
    {kSm90E4m3, "wide/e4m3-", "want a multiple of 8 up to 256"},
    {kSm90Backward, "wide/bf16-", "want a multiple of 8 up to 256"},
    {kSm90Backward, "wide/f16-", "want a multiple of 8 up to 256"},
    {kPortableBackward, "wide/bf16-", "want a multiple of 8 up to 256"},
    {kPortableBackward, "wide/f16-", "want a multiple of 8 up to 256"},
    {kPortablePaged, "wide/bf16-on-e4m3", "k_cache.dtype: got e4m3"},
    {kSm90Paged, "wide/bf16-", "want a multiple of 8 up to 256"},
    {kSm90Paged, "wide/f16-", "want a multiple of 8 up to 256"},
    {kSm90Paged, "wide/bf16-on-e4m3", "k_scale: got a value"},
    {kSm90Attention, "attention/blocks/", kNoLists},
    {kSm90E4m3, "attention/blocks/", kNoLists},
    {kPortableAttention, "blocks/bf16-16x32-d", "block_k: got 32"},
    {kPortableAttention, "blocks/f16-16x32-d", "block_k: got 32"},
    {kCdnaAttention, "attention/blocks/", kNoLists},
    {kSm90Backward, "blocks/bf16-192x96", "block_k: got 96"},
    {kSm90Backward, "blocks/f16-192x96", "block_k: got 96"},
    {kSm90Backward, "blocks/bf16-16x32", "block_k: got 32"},
    {kSm90Backward, "blocks/f16-16x32", "block_k: got 32"},
    {kSm90Backward, "blocks/bf16-1x224", "block_k: got 224"},
    {kSm90Backward, "blocks/f16-1x224", "block_k: got 224"},
    {kSm90Backward, "16-192x128-dims", "head_dim (of a block mask): got 192"},
    {kSm90Backward, "16-256-dims-64", "head_dim (of a block mask): got 256"},
    {kSm90Backward, "16-512-dims", "want a multiple of 8 up to 256"},
    {kPortableBackward, "blocks/bf16-192x96", "block_k: got 96"},
    {kPortableBackward, "blocks/f16-192x96", "block_k: got 96"},
    {kPortableBackward, "blocks/bf16-16x32", "block_k: got 32"},
    {kPortableBackward, "blocks/f16-16x32", "block_k: got 32"},
    {kPortableBackward, "blocks/bf16-1x224", "block_k: got 224"},
    {kPortableBackward, "blocks/f16-1x224", "block_k: got 224"},
    {kPortableBackward, "16-512-dims", "want a multiple of 8 up to 256"},
    {kPortableBackward, "attention_backward/packed_mask/", "packed_mask: got a value"},
    {kSm90Backward, "attention_backward/packed_mask/", "packed_mask: got a value"},
    {kSm90Blocks, "attention/", "block_mask: got none"},
    {kSm90Blocks, "attention/packed_mask/", "packed_mask: got a value"},
    {kSm90Blocks, "attention/score_bias/", ": got a value"},
    {kSm90Attention, "attention/score_bias/", ": got a value"},
    {kSm90Attention, "score_bias/bf16-alibi-", ""},
    {kSm90Attention, "score_bias/f16-alibi-", ""},
    {kSm90Attention, "score_bias/f32-alibi-", "q.dtype: got f32"},
    {kSm90Attention, "score_bias/bf16-alibi-packed-decode", "q.shape (rows, with alibi_slopes): got 1"},
    {kSm90Attention, "score_bias/f16-alibi-packed-decode", "q.shape (rows, with alibi_slopes): got 1"},
    {kSm90E4m3, "attention/score_bias/", ": got a value"},
    {kPortableAttention, "attention/score_bias/f32-", "q.dtype: got f32"},
    {kPortableAttention, "score_bias/bf16-all-512x512", "none at head dims past 256"},
    {kPortableAttention, "score_bias/f16-all-512x512", "none at head dims past 256"},
    {kCdnaAttention, "attention/score_bias/", ": got a value"},
    {kSm90Blocks, "attention/blocks/", ""},
    {kSm90Blocks, "blocks/f32-", "q.dtype: got f32"},
    {kSm90Blocks, "16-64-d", "block_k: got 64"},
    {kSm90Blocks, "16-128x64-d", "block_k: got 64"},
    {kSm90Blocks, "16-16x32-d", "block_k: got 32"},
    {kSm90Blocks, "16-64x128-d", "block_q: got 64"},
    {kSm90Blocks, "blocks/bf16-layout-odd-rows", "want a multiple of 16"},
    {kSm90Blocks, "blocks/bf16-layout-unaligned", "want a multiple of 16"},
    {kSm90Blocks, "blocks/f16-layout-odd-rows", "want a multiple of 16"},
    {kSm90Blocks, "blocks/f16-layout-unaligned", "want a multiple of 16"},
    {kSm90Attention, "packed_mask/", "packed_mask: got a value"},
    {kSm90E4m3, "packed_mask/", "packed_mask: got a value"},
    {kCdnaAttention, "packed_mask/", "packed_mask: got a value"},
    {kCdnaPaged, "packed_mask/", "packed_mask: got a value"},
    {kSm90Paged, "packed_mask/bf16-256x256", "want none at head dims past 128"},
    {kSm90Paged, "packed_mask/bf16-192x128", "want none at head dims past 128"},
    {kSm90Paged, "packed_mask/f16-256x256", "want none at head dims past 128"},
    {kSm90Paged, "packed_mask/f16-192x128", "want none at head dims past 128"},
    {kSm90Mixed, "packed_mask/", "packed_mask: got a value"},
    {kSm90Paged, "packed_mask/bf16-on-e4m3-", "k_scale: got a value"},
    {kSm90Paged, "packed_mask/f16-on-e4m3-", "k_scale: got a value"},
    {kSm90Paged, "packed_mask/f32-on-e4m3-", "k_scale: got a value"},
    {kSm90Paged, "/kv/", "k_format: got a value"},
    {kSm90Paged, "/kv/e5m2-", "k_scale: got a value"},
    {kSm90Paged, "/kv/nvfp4-", "k_scale: got a value"},
    {kSm90Paged, "-none-global", "k_format: got a value"},
    {kSm90Paged, "/kv/mixed-rows-", "v_format: got a value"},
    {kSm90Paged, "/kv/mixed-e4m3-rows-", "k_scale: got a value"},
    {kSm90Paged, "/kv/mixed-e4m3-token-", "k_format: got a value"},
    {kPortablePaged, "/kv/mixed-e5m2-mxfp8-f16", "v_format: got mxfp8, want another with f16 queries"},
    {kPortablePaged, "-f32-", "q.dtype: got f32"},
    {kCdnaPaged, "/kv/", "k_format: got a value"},
    {kCdnaPaged, "/kv/mixed-rows-", "v_format: got a value"},
    {kCdnaPaged, "/kv/mixed-e4m3-rows-", "v_format: got a value"},
    {"hip.cdna.paged_cache_append", "/kv/", "k_format: got a value"},
};

/// A part of the reason. Empty if `implementation` must take the case.
inline std::string_view expected_decline(const AnyCase& entry, std::string_view implementation) {
  std::string_view reason;
  for (const ExpectedDecline& expected : kExpectedDeclines) {
    // The kernel of kSm90Mixed that declines more is that of kSm90Paged.
    const bool half = implementation == kSm90Mixed && expected.implementation == kSm90Paged;
    if ((half || implementation == expected.implementation) && (entry.name + "$").find(expected.part) != std::string::npos)
      reason = expected.reason;
  }
  return reason;
}

}  // namespace fovea::check
