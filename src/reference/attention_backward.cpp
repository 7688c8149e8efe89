// SPDX-License-Identifier: Apache-2.0
/// Gradients by the chain rule, one (row, key) pair at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "reference/attend.hpp"
#include "reference/block_mask.hpp"
#include "reference/reference.hpp"
#include "reference/score_terms.hpp"

namespace fovea::reference {
namespace {

/// Element offsets of `count` rows.
std::vector<std::int64_t> offsets(std::int64_t base, std::int64_t stride, std::int64_t count) {
  std::vector<std::int64_t> at;
  for (std::int64_t i = 0; i < count; ++i) at.push_back(base + i * stride);
  return at;
}

struct Span {
  std::int64_t q_begin, q_size, k_begin, k_size;  ///< rows in the flat outputs
};

Span span_of(const detail::AttentionBackwardProblem& problem, const AttentionArgs& args, std::int64_t b) {
  if (!problem.ragged) return {b * problem.max_seq_q, problem.max_seq_q, b * problem.max_seq_k, problem.max_seq_k};
  return {args.cu_seqlens_q[b], args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b], args.cu_seqlens_k[b],
          args.cu_seqlens_k[b + 1] - args.cu_seqlens_k[b]};
}

/// The element of a row-major bias of its own shape.
std::int64_t bias_at(const detail::AttentionBackwardProblem& problem, const ScoreRow& at, std::int64_t key) {
  const detail::BiasStrides& shape = problem.dbias_extents;
  const auto index = [](std::int64_t extent, std::int64_t i) { return extent == 1 ? 0 : i; };
  const std::int64_t plane = index(shape.batch, at.batch) * shape.head + index(shape.head, at.head);
  return (plane * shape.row + index(shape.row, at.row)) * shape.key + index(shape.key, key);
}

/// The tensors of one (sequence, head) in double precision.
struct Head {
  Matrix q, k, v, dout;
  std::vector<double> dlse;           ///< of every row; zeros in a call without
  std::vector<std::int64_t> visible;  ///< of the current row
  std::int64_t batch = 0, index = 0;  ///< of the query head
};

/// One query row: p and ds from the row's own lse and delta, then the three outer products.
void add_row(const detail::AttentionBackwardProblem& problem, const AttentionArgs& args, const Head& head, std::int64_t row,
             const Span& span, BackwardOutput& result) {
  const std::int64_t head_index = head.index;
  const std::int64_t kv_head = head_index / problem.group();
  RowOptions options{.scale = problem.scale,
                     .softcap = problem.softcap,
                     .sink = problem.has_sink ? std::optional<double>(args.sink[head_index]) : std::nullopt};
  const ScoreRow at{head.batch, head_index, row, span.q_size, span.k_size};
  const auto added = [&](std::int64_t key) { return added_score(problem, args, at, key); };
  const auto kept = [&](std::int64_t key) { return kept_share(problem, args, at, key); };
  options.added = added;
  options.kept = kept;
  std::vector<double> out(static_cast<std::size_t>(problem.head_dim_v));
  const RowResult forward = attend(head.q.row(row), head.k, head.v, head.visible, options, out.data());
  if (std::isinf(forward.lse) && forward.lse < 0) return;
  const bool no_out = options.sink && std::isinf(*options.sink) && *options.sink > 0;  // such a row has out = 0 whatever the inputs are
  const double dlse = head.dlse[static_cast<std::size_t>(row)];
  if (no_out && !problem.has_dlse) return;
  const double total =
      problem.has_sink ? forward.lse + std::log1p(std::exp(*options.sink - forward.lse)) : forward.lse;  // log of the denominator
  const double delta = dot(head.dout.row(row), out.data(), problem.head_dim_v);
  if (problem.has_sink && !no_out) result.dsink[static_cast<std::size_t>(head_index)] -= std::exp(*options.sink - total) * delta;

  double* dq = &result.dq[static_cast<std::size_t>(((span.q_begin + row) * problem.heads + head_index) * problem.head_dim_qk)];
  for (const std::int64_t key : head.visible) {
    const double s = score(head.q.row(row), head.k.row(key), problem.head_dim_qk, options);
    const double more = added(key), whole = s + more, share = kept(key);
    if (more == -std::numeric_limits<double>::infinity()) continue;  // a key that the bias hides
    const double p = std::exp(whole - total);
    const double dp = share * dot(head.dout.row(row), head.v.row(key), problem.head_dim_v);
    const double cap = problem.softcap > 0 ? 1 - (s / problem.softcap) * (s / problem.softcap) : 1;
    const double of_score = p * (dp - delta) + std::exp(whole - forward.lse) * dlse, ds = of_score * cap * problem.scale;
    if (problem.has_dbias) result.dbias[static_cast<std::size_t>(bias_at(problem, at, key))] += of_score;
    const std::int64_t flat_key = (span.k_begin + key) * problem.kv_heads + kv_head;
    double* dk = &result.dk[static_cast<std::size_t>(flat_key * problem.head_dim_qk)];
    double* dv = &result.dv[static_cast<std::size_t>(flat_key * problem.head_dim_v)];
    for (std::int64_t d = 0; d < problem.head_dim_qk; ++d) {
      dq[d] += ds * head.k.row(key)[d];
      dk[d] += ds * head.q.row(row)[d];
    }
    for (std::int64_t d = 0; d < problem.head_dim_v; ++d) dv[d] += p * share * head.dout.row(row)[d];
  }
}

Head load_head(const detail::AttentionBackwardProblem& problem, const AttentionBackwardArgs& args, std::int64_t b, const Span& span,
               std::int64_t head) {
  const std::int64_t kv_head = head / problem.group();
  const std::int64_t q_row = problem.ragged ? span.q_begin : 0, k_row = problem.ragged ? span.k_begin : 0;
  const auto rows = [&](const detail::RowStrides& s, std::int64_t first, std::int64_t h, std::int64_t count) {
    return offsets(b * s.batch + first * s.row + h * s.head, s.row, count);
  };
  std::vector<double> dlse(static_cast<std::size_t>(span.q_size));
  const std::int64_t first = b * problem.dlse.batch + q_row * problem.dlse.row + head * problem.dlse.head;
  for (std::int64_t row = 0; problem.has_dlse && row < span.q_size; ++row) {
    dlse[static_cast<std::size_t>(row)] = args.dlse[first + row * problem.dlse.row];
  }
  return {gather(problem.q_dtype, args.forward.q, rows(problem.q, q_row, head, span.q_size), problem.head_dim_qk),
          gather(problem.kv_dtype, args.forward.k, rows(problem.k, k_row, kv_head, span.k_size), problem.head_dim_qk),
          gather(problem.kv_dtype, args.forward.v, rows(problem.v, k_row, kv_head, span.k_size), problem.head_dim_v),
          gather(problem.out_dtype, args.dout, rows(problem.dout, q_row, head, span.q_size), problem.head_dim_v),
          std::move(dlse),
          {}};
}

}  // namespace

BackwardOutput attention_backward(const detail::AttentionBackwardProblem& problem, const AttentionBackwardArgs& args) {
  const auto zeros = [](std::int64_t rows, std::int64_t heads, std::int64_t dim) {
    return std::vector<double>(static_cast<std::size_t>(rows * heads * dim));
  };
  BackwardOutput result{zeros(problem.total_q, problem.heads, problem.head_dim_qk),
                        zeros(problem.total_k, problem.kv_heads, problem.head_dim_qk),
                        zeros(problem.total_k, problem.kv_heads, problem.head_dim_v),
                        zeros(1, problem.heads, 1),
                        std::vector<char>(static_cast<std::size_t>(problem.total_q)),
                        std::vector<char>(static_cast<std::size_t>(problem.total_k)),
                        zeros(problem.dbias_elements, 1, 1)};
  const BlockMask blocks(problem, args.forward);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Span span = span_of(problem, args.forward, b);
    std::fill_n(result.q_written.begin() + span.q_begin, span.q_size, 1);
    std::fill_n(result.k_written.begin() + span.k_begin, span.k_size, 1);
    const std::optional<MaskedSequence> packed_mask = masked_sequence(problem, args.forward, b, span.q_begin);
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      Head tensors = load_head(problem, args, b, span, head);
      tensors.batch = b;
      tensors.index = head;
      for (std::int64_t row = 0; row < span.q_size; ++row) {
        std::vector<std::int64_t> in_band = visible_keys(problem.mask, row, span.q_size, span.k_size);
        if (packed_mask) hide_masked(in_band, *packed_mask, row, span.k_size);
        tensors.visible = blocks.seen(std::move(in_band), b, head, row);
        add_row(problem, args.forward, tensors, row, span, result);
      }
    }
  }
  return result;
}

}  // namespace fovea::reference
