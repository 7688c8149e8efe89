// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/element.hpp"
#include "reference/reference.hpp"

namespace fovea::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// One sequence of the batch; offsets in elements, of head 0.
struct Sequence {
  std::int64_t index = 0;      ///< in the batch
  std::int64_t first_row = 0;  ///< in the flat [total_q, ...] output
  std::int64_t seq_q = 0, seq_k = 0;
  std::int64_t q_at = 0;
  std::vector<std::int64_t> k_at{}, v_at{};  ///< [seq_k]; -1 where no row looks
};

/// The mask, straight from its definition.
bool sees(const BandMask& mask, std::int64_t row, std::int64_t key, const Sequence& sequence) {
  constexpr std::int64_t kFar = std::int64_t{1} << 60;
  const std::int64_t offset = mask.anchor == Anchor::bottom_right ? sequence.seq_k - sequence.seq_q : 0;
  const std::int64_t distance = key - (row + offset);
  return -std::clamp(mask.left, -kFar, kFar) <= distance && distance <= std::clamp(mask.right, -kFar, kFar);
}

bool seen_by_any(const BandMask& mask, std::int64_t key, const Sequence& sequence) {
  for (std::int64_t row = 0; row < sequence.seq_q; ++row) {
    if (sees(mask, row, key, sequence)) return true;
  }
  return false;
}

double scale_at(const float* scale, const std::optional<ScaleDesc>& desc, std::int64_t batch, std::int64_t kv_head) {
  return desc ? scale[batch * desc->batch_stride + kv_head * desc->head_stride] : 1.0;
}

/// What differs between dense and paged attention.
struct Inputs {
  const void *q, *k, *v;
  std::int64_t k_head_stride, v_head_stride;
  const float* sink;
};

/// Scales of one (sequence, kv head), 1 where there are none.
struct Scales {
  double q = 1, k = 1, v = 1;
};

/// Rows of one kv head in double: [seq_k, dim]. Rows that nobody sees stay zero and are never used.
std::vector<double> gather(DType dtype, const void* data, const std::vector<std::int64_t>& at, std::int64_t head_offset, std::int64_t dim) {
  std::vector<double> rows(at.size() * static_cast<std::size_t>(dim));
  for (std::size_t key = 0; key < at.size(); ++key) {
    if (at[key] < 0) continue;
    for (std::int64_t d = 0; d < dim; ++d) rows[key * static_cast<std::size_t>(dim) + static_cast<std::size_t>(d)] = load(dtype, data, at[key] + head_offset + d);
  }
  return rows;
}

double dot(const double* a, const double* b, std::int64_t size) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

/// One query row against the keys it sees. `scores` is scratch of seq_k.
struct Row {
  const detail::AttentionCore& core;
  const Sequence& sequence;
  const std::vector<double>&k, &v;
  std::vector<double>& scores;

  /// The largest visible score; NaN scores do not count here, they reach the sum.
  double score_all(std::int64_t row, const double* q, double scale) const {
    double largest = -kInfinity;
    for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
      if (!sees(core.mask, row, key, sequence)) continue;
      double s = scale * dot(q, &k[static_cast<std::size_t>(key * core.head_dim_qk)], core.head_dim_qk);
      if (core.softcap > 0) s = core.softcap * std::tanh(s / core.softcap);
      scores[static_cast<std::size_t>(key)] = s;
      largest = std::max(largest, s);
    }
    return largest;
  }

  /// Adds exp(s - largest) v to out and returns the sum of the exponentials.
  double accumulate(std::int64_t row, double largest, double* out) const {
    double sum = 0;
    for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
      if (!sees(core.mask, row, key, sequence)) continue;
      const double s = scores[static_cast<std::size_t>(key)];
      if (s == -kInfinity) continue;  // a weight of exactly zero, also where the largest score is -inf
      const double p = std::exp(s - (largest == -kInfinity ? 0 : largest));
      sum += p;
      const double* values = &v[static_cast<std::size_t>(key * core.head_dim_v)];
      for (std::int64_t d = 0; d < core.head_dim_v; ++d) out[d] += p * values[d];
    }
    return sum;
  }
};

/// The sink joins the denominator and nothing else.
double denominator(double sum, double largest, const float* sink, std::int64_t head) {
  return sink == nullptr ? sum : sum + std::exp(static_cast<double>(sink[head]) - (largest == -kInfinity ? 0 : largest));
}

void attend_head(const detail::AttentionCore& core, const Inputs& inputs, const Sequence& sequence, std::int64_t head, const Scales& scales,
                 AttentionOutput& result) {
  const std::int64_t kv_head = head / core.group();
  const std::vector<double> k = gather(core.kv_dtype, inputs.k, sequence.k_at, kv_head * inputs.k_head_stride, core.head_dim_qk);
  const std::vector<double> v = gather(core.kv_dtype, inputs.v, sequence.v_at, kv_head * inputs.v_head_stride, core.head_dim_v);
  std::vector<double> scores(static_cast<std::size_t>(sequence.seq_k)), q(static_cast<std::size_t>(core.head_dim_qk));
  const Row attend{core, sequence, k, v, scores};
  const double scale = static_cast<double>(core.scale) * scales.q * scales.k;

  for (std::int64_t row = 0; row < sequence.seq_q; ++row) {
    for (std::int64_t d = 0; d < core.head_dim_qk; ++d) {
      q[static_cast<std::size_t>(d)] = load(core.q_dtype, inputs.q, sequence.q_at + row * core.q.row + head * core.q.head + d);
    }
    const auto flat = static_cast<std::size_t>((sequence.first_row + row) * core.heads + head);
    double* out = &result.out[flat * static_cast<std::size_t>(core.head_dim_v)];
    const double largest = attend.score_all(row, q.data(), scale);
    const double sum = attend.accumulate(row, largest, out);
    result.written[static_cast<std::size_t>(sequence.first_row + row)] = 1;
    if (sum == 0) continue;  // sees nothing: out stays 0, lse -inf
    result.lse[flat] = (largest == -kInfinity ? 0 : largest) + std::log(sum);
    const double total = denominator(sum, largest, inputs.sink, head);
    for (std::int64_t d = 0; d < core.head_dim_v; ++d) out[d] = std::isinf(total) ? 0 : out[d] / total * scales.v;
  }
}

AttentionOutput empty_output(const detail::AttentionCore& core) {
  const auto rows = static_cast<std::size_t>(core.total_q * core.heads);
  return {std::vector<double>(rows * static_cast<std::size_t>(core.head_dim_v)), std::vector<double>(rows, -kInfinity),
          std::vector<char>(static_cast<std::size_t>(core.total_q))};
}

Sequence dense_sequence(const detail::AttentionProblem& problem, const AttentionArgs& args, std::int64_t b) {
  Sequence sequence{.index = b, .first_row = b * problem.max_seq_q, .seq_q = problem.max_seq_q, .seq_k = problem.max_seq_k};
  std::int64_t first_key = 0;
  if (problem.ragged) {
    sequence.first_row = args.cu_seqlens_q[b];
    sequence.seq_q = args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b];
    first_key = args.cu_seqlens_k[b];
    sequence.seq_k = args.cu_seqlens_k[b + 1] - args.cu_seqlens_k[b];
  }
  sequence.q_at = problem.ragged ? sequence.first_row * problem.q.row : b * problem.q.batch;
  for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
    const bool seen = seen_by_any(problem.mask, key, sequence);
    sequence.k_at.push_back(seen ? b * problem.k.batch + (first_key + key) * problem.k.row : -1);
    sequence.v_at.push_back(seen ? b * problem.v.batch + (first_key + key) * problem.v.row : -1);
  }
  return sequence;
}

Sequence paged_sequence(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args, std::int64_t b) {
  Sequence sequence{.index = b,
                    .first_row = args.cu_seqlens_q[b],
                    .seq_q = args.cu_seqlens_q[b + 1] - args.cu_seqlens_q[b],
                    .seq_k = args.kv_len[b],
                    .q_at = args.cu_seqlens_q[b] * problem.q.row};
  for (std::int64_t key = 0; key < sequence.seq_k; ++key) {
    const bool seen = seen_by_any(problem.mask, key, sequence);
    const std::int64_t block = seen ? args.block_table[b * problem.table_stride + key / problem.page] : 0;
    const std::int64_t slot = key % problem.page;
    sequence.k_at.push_back(seen ? block * problem.k.block + slot * problem.k.token : -1);
    sequence.v_at.push_back(seen ? block * problem.v.block + slot * problem.v.token : -1);
  }
  return sequence;
}

}  // namespace

AttentionOutput attention(const detail::AttentionProblem& problem, const AttentionArgs& args) {
  AttentionOutput result = empty_output(problem);
  const Inputs inputs{args.q, args.k, args.v, problem.k.head, problem.v.head, args.sink};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = dense_sequence(problem, args, b);
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const std::int64_t kv_head = head / problem.group();
      const Scales scales{scale_at(args.q_scale, problem.q_scale, b, kv_head), scale_at(args.k_scale, problem.k_scale, b, kv_head),
                          scale_at(args.v_scale, problem.v_scale, b, kv_head)};
      attend_head(problem, inputs, sequence, head, scales, result);
    }
  }
  return result;
}

AttentionOutput paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args) {
  AttentionOutput result = empty_output(problem);
  const Inputs inputs{args.q, args.k_cache, args.v_cache, problem.k.head, problem.v.head, args.sink};
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const Sequence sequence = paged_sequence(problem, args, b);
    for (std::int64_t head = 0; head < problem.heads; ++head) {
      const std::int64_t kv_head = head / problem.group();
      const Scales scales{1, scale_at(args.k_scale, problem.k_scale, 0, kv_head), scale_at(args.v_scale, problem.v_scale, 0, kv_head)};
      attend_head(problem, inputs, sequence, head, scales, result);
    }
  }
  return result;
}

}  // namespace fovea::reference
