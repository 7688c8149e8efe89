// SPDX-License-Identifier: Apache-2.0
/// The oracle: every operation in double precision and straight loops, with a mask predicate of its own. It shares nothing with the
/// kernels.
#pragma once

#include <vector>

#include "fovea/attention.hpp"
#include "fovea/attention_backward.hpp"
#include "fovea/latent_attention.hpp"
#include "fovea/merge.hpp"
#include "fovea/paged_attention.hpp"
#include "op/attention/problem.hpp"
#include "op/attention_backward/problem.hpp"
#include "op/latent_attention/problem.hpp"
#include "op/latent_cache_conversion/problem.hpp"
#include "op/merge_states/problem.hpp"
#include "op/paged_attention/problem.hpp"
#include "op/paged_cache_append/problem.hpp"
#include "op/quantized_attention/problem.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::reference {

/// Unrounded results, row-major: out [total_q, head, head_dim_v], lse [total_q, head]. A fixed batch counts as total_q = batch * seq_q.
/// Rows of no sequence are not `written`; their values are meaningless.
struct AttentionOutput {
  std::vector<double> out, lse;
  std::vector<char> written;         ///< [total_q]
  std::vector<double> max_logits{};  ///< [total_q, head], sparse latent attention only
};

/// Nothing is written: out 0 and lse -inf.
AttentionOutput empty_output(std::int64_t total_q, std::int64_t heads, std::int64_t head_dim_v);

AttentionOutput attention(const detail::AttentionProblem& problem, const AttentionArgs& args);
AttentionOutput paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args);
AttentionOutput merge_states(const detail::MergeStatesProblem& problem, const MergeStatesArgs& args);

AttentionOutput latent_attention(const detail::LatentAttentionProblem& problem, const LatentAttentionArgs& args);
AttentionOutput sparse_latent_attention(const detail::SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args);

/// Unrounded gradients, row-major: dq [total_q, head, dqk], dk [total_k, kv_head, dqk], dv [total_k, kv_head, dv], dsink [head].
struct BackwardOutput {
  std::vector<double> dq, dk, dv, dsink;
  std::vector<char> q_written, k_written;
  std::vector<double> dbias;  ///< row-major, in the shape of the bias
};

/// From q, k, v and dout alone. out and lse are recomputed, so no error of the forward pass reaches the gradients.
BackwardOutput attention_backward(const detail::AttentionBackwardProblem& problem, const AttentionBackwardArgs& args);

/// These are exact: they write the bytes themselves.
void paged_cache_append(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);
void quantize_latent_cache(const detail::QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args);
void dequantize_latent_cache(const detail::DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args);

/// These are exact as well. They read `cu_seqlens_q` only if the problem has a mask.
void quantize_qk_int8(const detail::QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
void quantize_v(const detail::QuantizeVProblem& problem, const QuantizeVArgs& args, const std::int32_t* cu_seqlens_q);
AttentionOutput quantized_attention(const detail::QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args);

}  // namespace fovea::reference
