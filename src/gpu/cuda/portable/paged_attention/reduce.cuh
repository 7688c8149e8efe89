// SPDX-License-Identifier: Apache-2.0
/// Reduction of partial results: over the warps of a CTA (epilogue.cuh), and over the splits that share a query tile.
#pragma once

#include <algorithm>

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

/// Factor of results that are relative to the maximum of `of`; the products are relative to `maximum`.
__device__ inline float weight_of(const RowState& of, float maximum, float scale_log2) {
  return rescale_factor<Warp>(of.maximum, maximum, scale_log2);
}

/// Index of a partial result: row `row` of the query tile in `slot`.
template <class Config>
__device__ std::int64_t cell_of(const Params& params, int slot, int kv_head, int row) {
  return (std::int64_t{slot} * params.kv_heads + kv_head) * Config::kRowTile + row;
}

/// to += weight * x
__device__ inline void add_weighted(float4& to, const float4& x, float weight) {
  to = {fmaf(weight, x.x, to.x), fmaf(weight, x.y, to.y), fmaf(weight, x.z, to.z), fmaf(weight, x.w, to.w)};
}
/// Everything times a factor of 0 is 0, NaN included.
__device__ inline float4 scaled(const float4& x, float factor) {
  return factor == 0 ? float4{} : float4{x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

/// A query row of the batch: token and head.
struct ResultRow {
  std::int64_t token;
  int head;

  /// `row`: packed row of the sequence.
  __device__ ResultRow(const Params& params, int q_begin, int kv_head, int row) {
    const int of_sequence = params.group.quotient(row);
    token = q_begin + of_sequence;
    head = kv_head * params.group.divisor + row - of_sequence * params.group.divisor;
  }

  __device__ void store_lse(const Params& params, const RowState& state, float scale_log2) const {
    if (params.lse == nullptr) return;
    params.lse[token * params.lse_strides.row + head * params.lse_strides.head] = lse_of(state.sum, state.maximum * scale_log2) * kLn2;
  }
  /// The softmax's denominator, with the sink's share.
  __device__ float denominator(const Params& params, const RowState& state, float scale_log2) const {
    if (params.sink == nullptr) return state.sum;
    return state.sum + exp2f(fmaf(params.sink[head], kLog2e, -state.maximum * scale_log2));
  }
  __device__ void store(const Params& params, int column, float x) const {
    const std::int64_t at = token * params.out_strides.row + head * params.out_strides.head + column;
    if (params.bf16) {
      from_f32(x, static_cast<__nv_bfloat16*>(params.out)[at]);
    } else {
      from_f32(x, static_cast<__half*>(params.out)[at]);
    }
  }
  /// Four neighbouring columns.
  __device__ void store(const Params& params, int column, const float4& x) const {
    const std::int64_t at = token * params.out_strides.row + head * params.out_strides.head + column;
    if (params.out_aligned) {
      const uint2 packed = params.bf16 ? uint2{pack<__nv_bfloat16>(x.x, x.y), pack<__nv_bfloat16>(x.z, x.w)}
                                       : uint2{pack<__half>(x.x, x.y), pack<__half>(x.z, x.w)};
      *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.out) + at) = packed;
    } else {
      for (int i = 0; i < 4; ++i) store(params, column + i, i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w);
    }
  }
};

/// Reduces a query tile that several splits share, in their order, in the CTA of its first split. The CTA waits for
/// the flags of the others. They have lower block numbers, so they run or have ended: blocks start in the order of
/// their numbers, as in CUB's scans.
template <class Config>
class ReduceSplits {
 public:
  __device__ ReduceSplits(const Params& params_, const ScoreTransform<Warp>& score_, int kv_head_, int split_)
      : params(params_),
        score(score_),
        kv_head(kv_head_),
        split(split_),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        of_row(lane % kRowLanes) {}

  /// Called by the whole CTA, after a barrier behind the stores of its own result.
  __device__ __forceinline__ void operator()(const WorkTile& work) const {
    if (work.slot < 0) return;
    if (work.slot == partial_slot(split, true) && threadIdx.x == 0) flag_set(ready(split), params.partials.call);
    if (work.last_split < 0) return;
    if (warp == 0) {
      for (int other = split + 1 + lane; other <= work.last_split; other += 32) {
        flag_wait(ready(other), params.partials.call);
        *ready(other) = 0;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp * kRowsAtOnce + lane / kRowLanes; row < work.rows; row += kWarps * kRowsAtOnce) reduce(work, row);
  }

 private:
  static constexpr int kQuads = Config::kQuads, kRowLanes = Config::kRowLanes, kRowsAtOnce = 32 / kRowLanes;
  static constexpr int kAtOnce = kRowLanes == 32 ? 8 : std::min(16 / kQuads, 8);  // splits whose results are loaded together

  __device__ std::uint64_t* ready(int of) const { return params.partials.ready + std::int64_t{of} * params.kv_heads + kv_head; }
  __device__ std::int64_t cell(int of, int row) const { return cell_of<Config>(params, partial_slot(of, of != split), kv_head, row); }
  /// Loads bypass L1, which may hold lines from before an earlier kernel stored to them.
  __device__ RowState state_of(std::int64_t cell) const {
    const float2 state = __ldcg(reinterpret_cast<const float2*>(params.partials.states + cell));
    return {state.x, state.y};
  }

  /// A row, by kRowLanes lanes. The maximum is updated with each kAtOnce splits, so nothing is read twice.
  __device__ __forceinline__ void reduce(const WorkTile& work, int row) const {
    RowState state{-INFINITY, 0};
    float4 columns[kQuads] = {};
#pragma unroll 1
    for (int begin = split; begin <= work.last_split; begin += kAtOnce) {
      RowState states[kAtOnce];
      float4 read[kAtOnce][kQuads];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) load(begin + i, work.last_split, row, states[i], read[i]);
      float maximum = state.maximum;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) maximum = fmaxf(maximum, states[i].maximum);
      const float rescale = weight_of(state, maximum, score.scale_log2);
      state = {maximum, state.sum * rescale};
#pragma unroll
      for (float4& x : columns) x = {x.x * rescale, x.y * rescale, x.z * rescale, x.w * rescale};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float weight = states[i].sum * weight_of(states[i], maximum, score.scale_log2);
        state.sum += weight;
#pragma unroll
        for (int j = 0; j < kQuads; ++j) add_weighted(columns[j], read[i][j], weight);
      }
    }
    store(ResultRow(params, work.q_begin, kv_head, work.row + row), state, columns);
  }
  /// Results behind the last split have weight 0.
  __device__ __forceinline__ void load(int of, int last, int row, RowState& state, float4 (&columns)[kQuads]) const {
    const std::int64_t at = cell(of, row);
    state = of <= last ? state_of(at) : RowState{-INFINITY, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int column = 4 * (kRowLanes * j + of_row);
      columns[j] = of <= last && column < params.head_dim_v
                       ? __ldcg(reinterpret_cast<const float4*>(params.partials.out + at * params.head_dim_v + column))
                       : float4{};
    }
  }
  __device__ __forceinline__ void store(const ResultRow& result, const RowState& state, const float4 (&columns)[kQuads]) const {
    if (of_row == 0) result.store_lse(params, state, score.scale_log2);
    const float factor = state.sum == 0 ? 0 : 1 / result.denominator(params, state, score.scale_log2);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int column = 4 * (kRowLanes * j + of_row);
      if (column < params.head_dim_v) result.store(params, column, scaled(columns[j], factor));
    }
  }

  const Params& params;
  const ScoreTransform<Warp>& score;
  const int kv_head, split, warp, lane, of_row;  // of_row: the lane's place among those of its row
};

}  // namespace fovea::gpu::portable::paged_attention
