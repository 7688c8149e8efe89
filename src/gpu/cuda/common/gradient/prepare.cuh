// SPDX-License-Identifier: Apache-2.0
/// The kernel before those of the gradients: RowStats of each query row, zeros in dq of queries that see no key, and zeros
/// in counters and flags.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/gradient/list_order.cuh"
#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "op/attention_backward/problem.hpp"

namespace fovea::gpu::gradient {

inline constexpr int kPrepareThreads = 256, kRowLanes = 16;  // lanes that share a row, eight elements each
inline constexpr float kNaturalFrom = 1 << 20;               // from this lse on, scores are rounded in base e

/// A row's lse with the sink's share; plus infinity for rows without a gradient.
__device__ inline float lse_with_sink(float lse, const float* sink, int head) {
  if (sink != nullptr && lse != -INFINITY) {
    const float other = sink[head], larger = fmaxf(lse, other);
    if (isfinite(larger)) lse = larger + log1pf(expf(fminf(lse, other) - larger));
    if (other == INFINITY) lse = INFINITY;
  }
  return lse == -INFINITY ? INFINITY : lse;
}

/// Adds dlse to a row with keys: ds = P (dP - delta) + exp(score - lse) dlse, where P = exp(score - total).
__device__ inline void take_dlse(float lse, float dlse, float sink, float& total, float& delta) {
  const float most = lse + detail::kMostSinkOverLse;
  if (sink > most) total = fabsf(lse) < detail::kLseWithoutSum ? most : INFINITY;
  delta = total == INFINITY ? 0 : delta - dlse * expf(total - lse);
}

/// Clears counters and flags, by all CTAs together.
template <class Params>
__device__ inline void clear(const Params& params, std::int64_t cell) {
  if (threadIdx.x != 0) return;
  if constexpr (Params::kOrderedDq) {
    if (params.dq_semaphore != nullptr) params.dq_semaphore[cell] = 0;
  }
  params.dq_not_finite[cell] = 0;
  if constexpr (Params::kOrderedDq) {
    if (cell == 0) *params.ticket = 0;
  }
  const std::int64_t cells = std::int64_t{params.heads} * params.query_tiles;
  for (std::int64_t i = cell; i < std::int64_t{params.key_tiles} * params.kv_heads; i += cells) params.dkv_not_finite[i] = 0;
}

/// Eight elements. kAligned: to 16 bytes.
template <bool kAligned, class Element>
__device__ inline Pack<Element, 8> load_eight(const Element* from) {
  if constexpr (kAligned) {
    return load_pack<8>(from);
  } else {
    Pack<Element, 8> eight;
#pragma unroll
    for (int i = 0; i < 8; ++i) eight.element[i] = from[i];
    return eight;
  }
}
template <bool kAligned, class Element>
__device__ inline void store_zeros(Element* to) {
  if constexpr (kAligned) {
    store_pack(to, Pack<Element, 8>{});
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) to[i] = Element{};
  }
}

/// dout . out of a row, by the lanes that share it.
template <bool kAligned, class Element, class Params>
__device__ inline float delta_of(const Params& params, const Element* out, const Element* dout) {
  float sum = 0;
  for (int column = threadIdx.x % kRowLanes * 8; column < params.head_dim_v; column += kRowLanes * 8) {
    const auto x = load_eight<kAligned>(out + column), y = load_eight<kAligned>(dout + column);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(to_f32(x.element[i]), to_f32(y.element[i]), sum);
  }
#pragma unroll
  for (int distance = kRowLanes / 2; distance > 0; distance /= 2)
    sum += __shfl_xor_sync(0xffffu << threadIdx.x % 32 / kRowLanes * kRowLanes, sum, distance);
  return sum;
}

/// Whether no key tile adds to dq of a query tile.
template <class Params>
__device__ inline bool sees_nothing(const Params& params, const Sequence& at, int query_tile, int head) {
  if constexpr (Params::kLists) {
    return lists_are_empty(params.lists, at.batch, head, query_tile * kQueryTile);
  } else {
    return order_of(params, at, params.key_tile).key_tiles_of(query_tile).size() == 0;
  }
}

/// Adds up the shares of a CTA's rows in the gradient of the sink.
__device__ __forceinline__ void store_sink_part(float of_sink, float& all) {
  __shared__ float parts[kPrepareThreads / kRowLanes];
  if (threadIdx.x % kRowLanes == 0) parts[threadIdx.x / kRowLanes] = of_sink;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (const float part : parts) sum += part;
  all = sum;
}

/// Runs TileSchedule in one CTA. All query tiles together take about as long.
template <class Params>
__device__ __forceinline__ void schedule(const Params& params) {
  using Schedule = TileSchedule<kPrepareThreads, Params>;
  __shared__ typename Schedule::Storage storage;
  if (blockIdx.x == 0) Schedule(params, storage)();
}

/// A CTA for each query tile and head; with lists and an order of key tiles, a row of CTAs before them. kAligned: rows of out, dout and dq
/// are, to 16 bytes.
template <class Element, class Params, bool kAligned = true>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ Params params) {
  grid_dependency_wait();
  launch_dependents();
  int head = blockIdx.y;
  if constexpr (Params::kLists && Params::kOrderedDq) {
    if (head == 0) return schedule(params);
    --head;
  }
  const int tile = blockIdx.x;
  const std::int64_t cell = std::int64_t{head} * params.query_tiles + tile;
  clear(params, cell);
  const Sequence at = sequence(params, sequence_at(params, params.cu_seqlens_q, params.seq_q, kQueryTile, tile));
  const int first = (tile - at.query_tile) * kQueryTile;
  const bool unseeing = first < at.seq_q && sees_nothing(params, at, tile - at.query_tile, head);
  constexpr int kAtOnce = kPrepareThreads / kRowLanes, kRounds = kQueryTile / kAtOnce;
  float lse[kRounds], delta[kRounds], of_sink = 0;
  bool vast = false;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int token = first + round * kAtOnce + static_cast<int>(threadIdx.x) / kRowLanes;
    lse[round] = INFINITY;
    delta[round] = 0;
    if (token >= at.seq_q) continue;  // a half warp returns as a whole: its shuffles stay in it
    const auto row = [&](const void* data, const detail::RowStrides& strides) {
      return static_cast<const Element*>(data) + at.offset(strides, at.q_begin, token, head);
    };
    const float sum = delta_of<kAligned>(params, row(params.out.data, params.out.strides), row(params.dout.data, params.dout.strides));
    const auto number = [&](const PlainRows& rows) {
      return static_cast<const float*>(rows.data)[at.offset(rows.strides, at.q_begin, token, head)];
    };
    const float of_keys = number(params.lse);
    lse[round] = lse_with_sink(of_keys, params.sink, head);
    if (unseeing) {
      auto* const dq = const_cast<Element*>(row(params.dq.data, params.dq.strides));
      for (int column = threadIdx.x % kRowLanes * 8; column < params.head_dim_qk; column += kRowLanes * 8)
        store_zeros<kAligned>(dq + column);
    }
    if (lse[round] != INFINITY) {
      delta[round] = sum;
      if (params.sink != nullptr && params.sink[head] != -INFINITY) of_sink += expf(params.sink[head] - lse[round]) * sum;
    }
    if (params.dlse.data != nullptr && !isinf(of_keys))
      take_dlse(of_keys, number(params.dlse), params.sink == nullptr ? -INFINITY : params.sink[head], lse[round], delta[round]);
    vast |= isfinite(lse[round]) && fabsf(lse[round]) >= kNaturalFrom;
  }
  const bool natural = __syncthreads_or(vast) != 0;
  RowStats& stats = params.stats[cell];
  if (threadIdx.x == 0) stats.natural = natural;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int row = round * kAtOnce + static_cast<int>(threadIdx.x) / kRowLanes;
    if (threadIdx.x % kRowLanes != 0) continue;
    stats.minus_lse[row] = natural ? -lse[round] : -lse[round] * kLog2e;
    stats.delta[row] = delta[round];
  }
  if (params.sink == nullptr) return;
  store_sink_part(of_sink, params.sink_parts[cell]);
}

}  // namespace fovea::gpu::gradient
