// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/mask.hpp"
#include "fovea/packed_mask.hpp"
#include "fovea/plan.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// Bounds of a ragged batch. The true lengths are read from cu_seqlens when the plan runs. A bound above the rows of the tensor means all
/// of them.
struct RaggedDesc {
  std::int64_t batch = 0;
  std::int64_t max_seq_q = 0;
  std::int64_t max_seq_k = 0;
};

/// Dense attention, `out = dropout(softmax(mask(softcap(scale * q k^T) + bias))) v` for each head.
///
/// Fixed batch: q [batch, seq_q, head, dqk], k [batch, seq_k, kv_head, dqk], v [batch, seq_k, kv_head, dv],
/// out [batch, seq_q, head, dv], lse [batch, head, seq_q].
/// Ragged (`ragged` set): q [total_q, head, dqk], k and v [total_k, kv_head, d], out [total_q, head, dv], lse [total_q, head].
///
/// dtypes: q, k, v of one dtype, f32 (CPU), f16, bf16, e4m3 or f64; out has the dtype of q, bf16 or f32 for e4m3. lse is f32.
/// f64 is for checking: only the reference computes it, in double precision throughout.
/// On NVIDIA GPUs: f16, bf16 from compute capability 8.0 on, and e4m3 on Hopper. Rows aligned to 16 bytes (TensorDesc::alignment) are fast,
/// and e4m3 needs them.
/// Head dims: any multiple of 8 up to 512, dqk and dv may differ. head % kv_head == 0 (GQA; MQA with kv_head 1).
///
/// A row that sees no key gives out = 0 and lse = -inf. lse is the natural logarithm and excludes the sink.
/// Rows of out and lse that no sequence of a ragged batch has are left alone, unless PlanOptions says to fill them.
/// Method: FlashAttention (Dao et al. 2022) with the online softmax of Milakov and Gimelshein (2018); sinks as in
/// "Efficient Streaming Language Models with Attention Sinks" (Xiao et al. 2023), one learned logit a head.
struct AttentionDesc {
  TensorDesc q{}, k{}, v{}, out{};
  std::optional<TensorDesc> lse{};
  std::optional<RaggedDesc> ragged{};
  BandMask mask{};
  double scale = 0.0;    ///< 0 means head_dim_qk ** -0.5; rounded to f32, as softcap is, unless q is f64
  double softcap = 0.0;  ///< c > 0: s = c * tanh(s / c), before the mask; 0 means none
  bool has_sink = false;
  std::optional<ScaleDesc> q_scale{}, k_scale{}, v_scale{};  ///< e4m3 inputs only; absent means 1
  /// A block mask, of a fixed batch. For each block of `block_q` query rows, lists name the blocks of `block_k` keys that it sees: `full`
  /// ones, and `partial` ones with a bit for each row and key. The band and the lists both hide keys. Without any list there is no mask.
  /// counts: i32 [batch or 1, head or 1, q_block]; indices: i32 [.., q_block, slot], in any order; entries from the count on are not read.
  /// bits: i32 [.., q_block, slot * block_q * block_k / 32]: for each slot, rows of block_k / 32 words, the first key in the lowest bit.
  /// Counts beyond the slots name all of them. A number of no key block is ignored. A block is named once, or its keys may count twice.
  std::optional<TensorDesc> full_block_counts{}, full_block_indices{};
  std::optional<TensorDesc> partial_block_counts{}, partial_block_indices{}, partial_block_bits{};
  std::int64_t block_q = 0, block_k = 0;        ///< rows of a query block, keys of a key block
  std::optional<PackedMaskDesc> packed_mask{};  ///< beside `mask`
  /// f32 [head] or [batch, head], ALiBi (Press et al. 2022): s -= slope * |j - (i + offset)|, with the mask's offset, after softcap.
  std::optional<TensorDesc> alibi_slopes{};
  /// dtype of out, [batch, head, seq_q, seq_k], of which any extent may be 1: s += bias, after softcap. Any strides; -inf is allowed. The
  /// two lengths of a ragged batch are the bounds of `ragged` or more.
  std::optional<TensorDesc> bias{};
  /// 0 <= p < 1. A weight is multiplied by 0 or by 1 / (1 - p), by Philox4x32-10 (op/common/dropout.hpp has the formula). lse is without.
  double dropout_p = 0.0;
};

/// Pointers of one call. Those that the description does not need stay null.
struct AttentionArgs {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  const float* sink = nullptr;                 ///< [head] f32; joins the denominator only. -inf has no effect, +inf gives zeros.
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1], ragged only: sequence b has rows cu[b] .. cu[b+1]-1
  const std::int32_t* cu_seqlens_k = nullptr;  ///< [batch + 1], ragged only
  const float* q_scale = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  const std::int32_t* full_block_counts = nullptr;
  const std::int32_t* full_block_indices = nullptr;
  const std::int32_t* partial_block_counts = nullptr;
  const std::int32_t* partial_block_indices = nullptr;
  const std::int32_t* partial_block_bits = nullptr;
  const std::uint8_t* packed_mask = nullptr;
  const std::int32_t* mask_indptr = nullptr;  ///< [batch + 1], as packed_mask.hpp says
  const float* alibi_slopes = nullptr;
  const void* bias = nullptr;
  const std::int64_t* dropout_state = nullptr;  ///< [2] seed and offset, 64 bits each; read when the plan runs
};

using AttentionPlan = Plan<AttentionArgs>;

/// Errors: invalid_argument when the description contradicts itself, unsupported when no implementation accepts it.
Result<AttentionPlan> plan_attention(const AttentionDesc& desc, Device device = {}, const PlanOptions& options = {});

}  // namespace fovea
