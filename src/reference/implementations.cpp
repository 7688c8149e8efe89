// SPDX-License-Identifier: Apache-2.0
/// The reference is the last entry of every list. It is slow, but accepts whatever the contract allows. It alone allocates in run().
#include "reference/implementations.hpp"

#include "op/common/head_dims.hpp"
#include "reference/element.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

/// Checks what the host can see, then computes.
template <class Problem, class Args, class Compute>
Result<void> checked(const Problem& problem, const Args& args, Compute compute) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_lengths(problem, args); !good) return good;
  compute();
  return {};
}

/// out and lse of a forward operation.
void round_output(const detail::AttentionCore& core, std::int64_t rows_per_batch, const AttentionOutput& result, void* out, float* lse) {
  round_rows({result.out, result.written, rows_per_batch, core.heads, core.head_dim_v}, core.out_dtype, core.out, out);
  if (core.has_lse) round_rows({result.lse, result.written, rows_per_batch, core.heads}, DType::f32, core.lse, lse);
}

Result<void> run_attention(const detail::AttentionProblem& problem, const AttentionArgs& args) {
  return checked(problem, args, [&] {
    const std::int64_t rows = problem.ragged ? problem.total_q : problem.max_seq_q;
    round_output(problem, rows, attention(problem, args), args.out, args.lse);
  });
}

Result<void> run_paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  return checked(problem, args, [&] { round_output(problem, problem.total_q, paged_attention(problem, args), args.out, args.lse); });
}

Result<void> run_latent_attention(const detail::LatentAttentionProblem& problem, const LatentAttentionArgs& args) {
  return checked(problem, args, [&] {
    const std::int64_t rows = problem.ragged ? problem.total_q : problem.max_seq_q;
    round_output(problem, rows, latent_attention(problem, args), args.out, args.lse);
  });
}

Result<void> run_sparse_latent_attention(const detail::SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  const AttentionOutput result = sparse_latent_attention(problem, args);
  round_output(problem, problem.max_seq_q, result, args.out, args.lse);
  if (problem.has_max_logits) {
    round_rows({result.max_logits, result.written, problem.max_seq_q, problem.heads}, DType::f32, problem.max_logits, args.max_logits);
  }
  return {};
}

void round_bias(const detail::AttentionBackwardProblem& problem, const std::vector<double>& values, void* to) {
  const detail::BiasStrides &shape = problem.dbias_extents, &strides = problem.dbias;
  for (std::int64_t i = 0; i < problem.dbias_elements; ++i) {
    const std::int64_t key = i % shape.key, row = i / shape.key % shape.row, plane = i / shape.key / shape.row;
    const std::int64_t at = plane / shape.head * strides.batch + plane % shape.head * strides.head + row * strides.row + key * strides.key;
    store(problem.out_dtype, to, at, values[static_cast<std::size_t>(i)]);
  }
}

Result<void> run_attention_backward(const detail::AttentionBackwardProblem& problem, const AttentionBackwardArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_lengths(problem, args.forward); !good) return good;
  const BackwardOutput result = attention_backward(problem, args);
  const std::int64_t q_rows = problem.ragged ? problem.total_q : problem.max_seq_q;
  const std::int64_t k_rows = problem.ragged ? problem.total_k : problem.max_seq_k;
  round_rows({result.dq, result.q_written, q_rows, problem.heads, problem.head_dim_qk}, problem.q_dtype, problem.dq, args.dq);
  round_rows({result.dk, result.k_written, k_rows, problem.kv_heads, problem.head_dim_qk}, problem.kv_dtype, problem.dk, args.dk);
  round_rows({result.dv, result.k_written, k_rows, problem.kv_heads, problem.head_dim_v}, problem.kv_dtype, problem.dv, args.dv);
  if (problem.has_sink) round_rows({result.dsink, {1}, 1, problem.heads}, DType::f32, {0, 0, 1}, args.dsink);
  if (problem.has_dbias) round_bias(problem, result.dbias, args.dbias);
  return {};
}

Result<void> run_paged_cache_append(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_slots(problem, args); !good) return good;
  paged_cache_append(problem, args);
  return {};
}

Result<void> run_merge_states(const detail::MergeStatesProblem& problem, const MergeStatesArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  const AttentionOutput result = merge_states(problem, args);
  const detail::MergeStatesProblem::Strides& to = problem.out;
  round_rows({result.out, result.written, problem.total_q, problem.heads, problem.head_dim_v}, problem.dtype, {0, to.out_row, to.out_head},
             args.out);
  if (problem.has_lse)
    round_rows({result.lse, result.written, problem.total_q, problem.heads}, DType::f32, {0, to.lse_row, to.lse_head}, args.lse);
  return {};
}

/// Both directions of the conversion of a latent cache.
template <class Problem, class Args>
Result<void> convert(const Problem& problem, const Args& args, void (*conversion)(const Problem&, const Args&)) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  if (Result<void> good = check_slots(problem, args.slot_mapping); !good) return good;
  conversion(problem, args);
  return {};
}

Result<void> run_quantize(const detail::QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args) {
  return convert(problem, args, quantize_latent_cache);
}
Result<void> run_dequantize(const detail::DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args) {
  return convert(problem, args, dequantize_latent_cache);
}

/// Plans every valid problem.
template <class Operation, typename State<Operation>::Run kRun>
detail::PlanResult<typename Operation::Args> plan_any(const typename Operation::Problem& problem, Device) {
  return make_state<Operation>(problem, kRun);
}

/// Plans every valid problem whose head dims the contract allows.
template <class Operation, typename State<Operation>::Run kRun>
detail::PlanResult<typename Operation::Args> plan_head_dims(const typename Operation::Problem& problem, Device) {
  if (auto reason = detail::decline_widest_head_dims(problem)) return *reason;
  return make_state<Operation>(problem, kRun);
}

}  // namespace

detail::Implementations<detail::Attention> implementations(detail::Attention) {
  return only<detail::Attention>("f32, f16, bf16, e4m3, f64; head dims that are multiples of 8 up to 512",
                                 plan_head_dims<detail::Attention, run_attention>);
}

detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward) {
  return only<detail::AttentionBackward>("f32, f16, bf16, f64; head dims that are multiples of 8 up to 512",
                                         plan_head_dims<detail::AttentionBackward, run_attention_backward>);
}

detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention) {
  return only<detail::PagedAttention>("f32, f16, bf16, e4m3 caches, every KvFormat; head dims that are multiples of 8 up to 512; any page",
                                      plan_head_dims<detail::PagedAttention, run_paged_attention>);
}

detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend) {
  return only<detail::PagedCacheAppend>("f32, f16, bf16 rows; same dtype or e4m3 caches, every KvFormat",
                                        plan_any<detail::PagedCacheAppend, run_paged_cache_append>);
}

detail::Implementations<detail::MergeStates> implementations(detail::MergeStates) {
  return only<detail::MergeStates>("f32, f16, bf16; any head dim", plan_any<detail::MergeStates, run_merge_states>);
}

detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention) {
  return only<detail::LatentAttention>("f32, f16, bf16; plain rows, e4m3 rows and every packed format",
                                       plan_any<detail::LatentAttention, run_latent_attention>);
}

detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention) {
  return only<detail::SparseLatentAttention>("f32, f16, bf16 rows and every packed format",
                                             plan_any<detail::SparseLatentAttention, run_sparse_latent_attention>);
}

detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache) {
  return only<detail::QuantizeLatentCache>("f32, f16, bf16 rows; every packed format", plan_any<detail::QuantizeLatentCache, run_quantize>);
}

detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache) {
  return only<detail::DequantizeLatentCache>("f32, f16, bf16 rows; every packed format",
                                             plan_any<detail::DequantizeLatentCache, run_dequantize>);
}

void round_rows(const Rounding& from, DType dtype, const detail::RowStrides& strides, void* to) {
  for (std::size_t flat = 0; flat < from.written.size(); ++flat) {
    if (from.written[flat] == 0) continue;
    const auto index = static_cast<std::int64_t>(flat);
    const std::int64_t at = index / from.rows_per_batch * strides.batch + index % from.rows_per_batch * strides.row;
    for (std::int64_t head = 0; head < from.heads; ++head) {
      for (std::int64_t d = 0; d < from.width; ++d) {
        const double value = from.values[static_cast<std::size_t>((index * from.heads + head) * from.width + d)];
        store(dtype, to, at + head * strides.head + d, value);
      }
    }
  }
}

}  // namespace fovea::reference
