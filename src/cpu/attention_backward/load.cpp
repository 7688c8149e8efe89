// SPDX-License-Identifier: Apache-2.0
/// The backward pass prepares this once for each head.
#include <array>
#include <cmath>
#include <limits>

#include "cpu/attention/item.hpp"
#include "cpu/attention_backward/head.hpp"
#include "op/common/head_dims.hpp"

namespace fovea::cpu {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Uses eight sums, so that the compiler may use vectors.
float dot(const float* a, const float* b, std::int64_t count) {
  std::array<float, 8> sums{};
  for (std::int64_t i = 0; i < count; i += 8) {
    for (std::size_t j = 0; j < 8; ++j) sums[j] += a[static_cast<std::size_t>(i) + j] * b[static_cast<std::size_t>(i) + j];
  }
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

/// dout . out; head dims are multiples of eight.
float delta_of(const Head& head, Row dout, Row out) {
  const std::int64_t dim = head.core().head_dim_v;
  const auto widen = head.setup.forward.rows->add_scaled[head.dtype()];
  alignas(64) std::array<float, detail::kWidestHeadDim> a{}, b{};
  widen(a.data(), dout, 1.0f, dim);
  widen(b.data(), out, 1.0f, dim);
  return dot(a.data(), b.data(), dim);
}

/// Logarithm of the denominator with the sink, which the lse of the forward pass excludes.
double with_sink(double lse, double sink) {
  if (std::isnan(lse) || std::isnan(sink)) return lse + sink;
  return std::max(lse, sink) + std::log1p(std::exp(-std::abs(lse - sink)));
}

/// Removes the row from every matrix product.
void leave_out(const Head& head, std::int64_t query) {
  const BackwardScratch& s = head.scratch;
  s.q_rows[query] = s.dout_rows[query] = zero_row();
  s.shift[query] = kNothing;
  s.delta[query] = 0;
}

/// One number of a row, as lse and dlse have it. Strides are in elements.
float number_of(const Head& head, const float* base, const detail::RowStrides& strides, std::int64_t query) {
  const Sequence& at = head.sequence;
  return base[at.batch * strides.batch + (at.first_q + query) * strides.row + head.index * strides.head];
}

/// The share of dlse in a row with keys: ds = P (dP - delta) + exp(score - lse) dlse, where P = exp(score - total).
void take_dlse(const Head& head, std::int64_t query, double lse, double sink) {
  const BackwardScratch& s = head.scratch;
  const double most = lse + detail::kMostSinkOverLse;
  if (sink > most && std::abs(lse) >= detail::kLseWithoutSum) return leave_out(head, query);
  if (sink > most) s.shift[query] = static_cast<float>(-most);
  s.delta[query] -= number_of(head, head.call.dlse, head.setup.dlse, query) * static_cast<float>(std::exp(-s.shift[query] - lse));
}

/// Returns the row's share of dsink.
double load_row(const Head& head, std::int64_t query) {
  const Call& forward = head.call.forward;
  const double lse = number_of(head, forward.lse, head.core().lse, query);
  const double sink = forward.sink != nullptr ? forward.sink[head.index] : kNothing;
  const bool no_out = sink == std::numeric_limits<double>::infinity();
  if (std::isinf(lse) || (no_out && head.call.dlse == nullptr)) {
    leave_out(head, query);
    return 0;
  }
  const double total = forward.sink != nullptr && sink != kNothing ? with_sink(lse, sink) : lse;
  const BackwardScratch& s = head.scratch;
  s.q_rows[query] = head.query_row(forward.q, head.setup.q, query);
  s.dout_rows[query] = head.query_row(head.call.dout, head.setup.dout, query);
  s.shift[query] = static_cast<float>(-total);
  s.delta[query] = delta_of(head, s.dout_rows[query], head.query_row(forward.out, head.setup.out, query));
  const double of_sink = forward.sink != nullptr && !no_out ? -std::exp(sink - total) * s.delta[query] : 0;
  if (head.call.dlse != nullptr) take_dlse(head, query, lse, sink);
  return of_sink;
}

}  // namespace

float load_head(const Head& head) {
  const detail::AttentionCore& core = head.core();
  const AttentionKernels& kernels = head.kernels();
  const BackwardExtents& e = head.extents;
  const BackwardScratch& s = head.scratch;
  const std::int64_t operand = kernels.operand_bytes;
  const int tile = head.setup.tuning.q_tile, qk = static_cast<int>(core.head_dim_qk), dv = static_cast<int>(core.head_dim_v);
  const std::int64_t end = round_up(head.sequence.seq_q, tile);
  double dsink = 0;
  for (std::int64_t query = 0; query < head.sequence.seq_q; ++query) {
    head.prefetch_query(head.call.forward.q, head.setup.q, query, core.head_dim_qk);
    head.prefetch_query(head.call.dout, head.setup.dout, query, core.head_dim_v);
    head.prefetch_query(head.call.forward.out, head.setup.out, query, core.head_dim_v);
    dsink += load_row(head, query);
  }
  for (std::int64_t query = head.sequence.seq_q; query < end; ++query) leave_out(head, query);

  for (std::int64_t query = 0; query < end; query += tile) {
    const Row *q = s.q_rows + query, *dout = s.dout_rows + query;
    kernels.pack_keys[head.dtype()](q, tile, qk, static_cast<int>(e.qk_keys), s.q_keys + query * e.qk_keys * operand);
    kernels.pack_keys[head.dtype()](dout, tile, dv, static_cast<int>(e.v_keys), s.dout_keys + query * e.v_keys * operand);
    s.finite[query / tile] = {
        .q = kernels.pack_values[head.dtype()](q, tile, qk, tile, s.q_values + query * e.qk_values * operand),
        .dout = kernels.pack_values[head.dtype()](dout, tile, dv, tile, s.dout_values + query * e.v_values * operand)};
  }
  std::fill_n(s.dq, end * e.qk_values, 0.0f);
  std::fill_n(s.ones, std::max(tile, head.setup.tuning.kv_tile), 1.0f);
  return static_cast<float>(dsink);
}

}  // namespace fovea::cpu
