// SPDX-License-Identifier: Apache-2.0
/// The kernel after those of the gradients. It recomputes rows whose gradient is not finite by scalar arithmetic over
/// visible pairs alone, since 0 * NaN is NaN. It also computes the gradient of sinks.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/common/gradient/sequence_index.cuh"
#include "gpu/cuda/common/score_bias.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu::gradient {

inline constexpr int kFinishThreads = 256, kColumns = 256 / 32;  // columns of a lane, at most

/// A row of a warp. Lane l has the columns 32 c + l.
struct LaneRow {
  float x[kColumns];

  template <class Element>
  __device__ static LaneRow load(const Element* row, int columns) {
    LaneRow loaded;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) loaded.x[c] = column(c) < columns ? to_f32(row[column(c)]) : 0.0f;
    return loaded;
  }
  __device__ static int column(int c) { return c * 32 + static_cast<int>(threadIdx.x % 32); }
  __device__ float dot(const LaneRow& other) const {
    float sum = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum = fmaf(x[c], other.x[c], sum);
    return Warp::sum_of_warp(sum);
  }
  __device__ void add(float factor, const LaneRow& other) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) x[c] = fmaf(factor, other.x[c], x[c]);
  }
  template <class Element>
  __device__ void store(Element* row, int columns, float factor) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      if (column(c) < columns) from_f32(x[c] * factor, row[column(c)]);
    }
  }
  __device__ bool finite() const {
    float zero = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) zero = fmaf(x[c], 0.0f, zero);
    return !Warp::any(zero != 0);
  }
};

/// A warp that computes rows of gradients, of one sequence. `kBiased`: `params.bias` has ALiBi, a bias or dropout.
template <class Element, class Params, bool kBiased = false>
struct ExactRows {
  const Params& params;
  const Sequence at;
  const detail::GradientOrder order;

  __device__ ExactRows(const Params& params_, const Sequence& at_)
      : params(params_), at(at_), order(order_of(params_, at_, params_.key_tile)) {}

  template <class Rows>
  __device__ Element* query_row(const Rows& rows, int token, int head) const {
    return row_at(rows, at.q_begin, token, head);
  }
  template <class Rows>
  __device__ Element* key_row(const Rows& rows, int key, int kv_head) const {
    return row_at(rows, at.k_begin, key, kv_head);
  }

  struct Place {
    int token, head, key;
  };
  /// p, as far as dropout leaves it, and ds of a visible pair. Rows without a gradient have no pairs.
  struct Pair {
    float p, ds;
  };
  __device__ Pair pair(const LaneRow& q, const LaneRow& dout, const LaneRow& k, const LaneRow& v, const RowStats& stats,
                       Place place) const {
    const int row = place.token % kQueryTile;
    float score = q.dot(k) * params.scale, slope = 1;
    if (params.softcap != 0) {
      const float tanh = tanhf(score / params.softcap);  // not by Softcap, which takes three more registers
      slope = 1 - tanh * tanh;
      score = params.softcap * tanh;
    }
    float share = 1;
    if constexpr (kBiased) {
      const int index = sequence_index(params, at);
      score += added_score<Element>(params, params.bias, {index, place.head, place.token, at.seq_q, at.seq_k}, place.key);
      share = kept_share(
          params.bias, {static_cast<std::uint32_t>(place.token), static_cast<std::uint32_t>(index * params.heads + place.head)}, place.key);
    }
    const float minus_lse = stats.minus_lse[row];
    const float exponent = stats.natural != 0 ? (score + minus_lse) * kLog2e : fmaf(score, kLog2e, minus_lse);
    const float p = exponent > 0 ? 1 : exp2f(exponent);
    return {p * share, p * (dout.dot(v) * share - stats.delta[row]) * slope};
  }

  __device__ void query(const RowStats& stats, int token, int head) const {
    Element* const row = query_row(params.dq, token, head);
    if (LaneRow::load(row, params.head_dim_qk).finite()) return;
    LaneRow dq{};
    const int kv_head = head / params.heads_per_kv;
    const LaneRow q = LaneRow::load(query_row(params.q, token, head), params.head_dim_qk);
    const LaneRow dout = LaneRow::load(query_row(params.dout, token, head), params.head_dim_v);
    const int end = stats.minus_lse[token % kQueryTile] == -INFINITY ? 0 : min(token + order.high + 1, at.seq_k);
    for (int key = max(token + order.low, 0); key < end; ++key) {
      if (!shows(head, token, key)) continue;
      const LaneRow k = LaneRow::load(key_row(params.k, key, kv_head), params.head_dim_qk);
      const LaneRow v = LaneRow::load(key_row(params.v, key, kv_head), params.head_dim_v);
      dq.add(pair(q, dout, k, v, stats, {token, head, key}).ds, k);
    }
    dq.store(row, params.head_dim_qk, params.scale);
  }

  __device__ void key(int key, int kv_head) const {
    Element *const dk_row = key_row(params.dk, key, kv_head), *const dv_row = key_row(params.dv, key, kv_head);
    if (LaneRow::load(dk_row, params.head_dim_qk).finite() && LaneRow::load(dv_row, params.head_dim_v).finite()) return;
    LaneRow dk{}, dv{};
    const LaneRow k = LaneRow::load(key_row(params.k, key, kv_head), params.head_dim_qk);
    const LaneRow v = LaneRow::load(key_row(params.v, key, kv_head), params.head_dim_v);
    for (int head = kv_head * params.heads_per_kv; head < (kv_head + 1) * params.heads_per_kv; ++head) {
      for (int token = max(key - order.high, 0); token < min(key - order.low + 1, at.seq_q); ++token) {
        const RowStats& stats = params.stats[std::int64_t{head} * params.query_tiles + at.query_tile + token / kQueryTile];
        if (stats.minus_lse[token % kQueryTile] == -INFINITY || !shows(head, token, key)) continue;
        const LaneRow q = LaneRow::load(query_row(params.q, token, head), params.head_dim_qk);
        const LaneRow dout = LaneRow::load(query_row(params.dout, token, head), params.head_dim_v);
        const Pair of = pair(q, dout, k, v, stats, {token, head, key});
        dv.add(of.p, dout);
        dk.add(of.ds, q);
      }
    }
    dk.store(dk_row, params.head_dim_qk, params.scale);
    dv.store(dv_row, params.head_dim_v, 1);
  }

 private:
  /// Whether lists, if there are any, show a key to a query.
  __device__ bool shows(int head, int token, int key) const {
    if constexpr (Params::kLists) return lists_show(params.lists, at.batch, head, token, key);
    return true;
  }
  template <class Rows>
  __device__ Element* row_at(const Rows& rows, int begin, int token, int head) const {
    return static_cast<Element*>(const_cast<void*>(rows.data)) + at.offset(rows.strides, begin, token, head);
  }
};

/// Sums the partial gradients of a head's sink, by a warp.
template <class Params>
__device__ inline void add_sink_parts(const Params& params, int head) {
  float sum = 0;
  for (int tile = threadIdx.x % 32; tile < params.query_tiles; tile += 32)
    sum += params.sink_parts[std::int64_t{head} * params.query_tiles + tile];
  sum = Warp::sum_of_warp(sum);
  if (threadIdx.x % 32 == 0) params.dsink[head] = -sum;
}

/// CTAs look for flags. The warps of a CTA share the rows of a flagged tile.
template <class Element, class Params, bool kBiased = false>
__global__ void __launch_bounds__(kFinishThreads) finish(const __grid_constant__ Params params) {
  grid_dependency_wait();
  const int warp = threadIdx.x / 32, warps = kFinishThreads / 32;
  if (params.dsink != nullptr) {
    for (int head = blockIdx.x * warps + warp; head < params.heads; head += gridDim.x * warps) add_sink_parts(params, head);
  }
  if (!params.leaks) return;
  for (std::int64_t cell = blockIdx.x; cell < std::int64_t{params.heads} * params.query_tiles; cell += gridDim.x) {
    if (params.dq_not_finite[cell] == 0) continue;
    const int head = static_cast<int>(cell / params.query_tiles), tile = static_cast<int>(cell % params.query_tiles);
    const ExactRows<Element, Params, kBiased> rows(
        params, sequence(params, sequence_at(params, params.cu_seqlens_q, params.seq_q, kQueryTile, tile)));
    const int first = (tile - rows.at.query_tile) * kQueryTile;
    for (int token = first + warp; token < min(first + kQueryTile, rows.at.seq_q); token += warps)
      rows.query(params.stats[cell], token, head);
  }
  for (int ticket = blockIdx.x; ticket < params.key_tiles * params.kv_heads; ticket += gridDim.x) {
    if (params.dkv_not_finite[ticket] == 0) continue;
    const KeyTile tile = tile_at_ticket(params, params.key_tile, ticket);
    const ExactRows<Element, Params, kBiased> rows(params, tile.sequence);
    for (int key = tile.begin + warp; key < min(tile.begin + params.key_tile, rows.at.seq_k); key += warps) rows.key(key, tile.kv_head);
  }
}

}  // namespace fovea::gpu::gradient
