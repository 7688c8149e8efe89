// SPDX-License-Identifier: Apache-2.0
/// Merges the partial results of a query tile that several parts share, in the order of the parts: in the CTA of the part where the query
/// tile begins. It waits for the others. Those have lower block numbers, so they run or have ended: as in CUB's scans, blocks start in the
/// order of their numbers.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/portable/paged_attention/merge.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
class MergeParts {
 public:
  __device__ MergeParts(const Params& params_, const ScoreTransform<Warp>& score_, int kv_head_, int part_)
      : params(params_),
        score(score_),
        kv_head(kv_head_),
        part(part_),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {}

  /// By the whole CTA, after a barrier behind the stores of the part's own result.
  __device__ __forceinline__ void operator()(const WorkTile& work) const {
    if (work.slot < 0) return;
    if (work.slot == partial_slot(part, true) && threadIdx.x == 0) flag_set(ready(part), params.partials.call);
    if (work.last_part < 0) return;
    if (warp == 0) {
      for (int other = part + 1 + lane; other <= work.last_part; other += 32) {
        flag_wait(ready(other), params.partials.call);
        *ready(other) = 0;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int row = warp; row < work.rows; row += kWarps) merge(work, row);
  }

 private:
  static constexpr int kQuads = Config::kQuads;
  static constexpr int kAtOnce = 8;  // parts whose results are on their way

  __device__ std::uint64_t* ready(int of) const { return params.partials.ready + std::int64_t{of} * params.kv_heads + kv_head; }
  __device__ std::int64_t cell(int of, int row) const { return cell_of<Config>(params, partial_slot(of, of != part), kv_head, row); }
  /// Nothing is read through the L1 cache, where what an earlier kernel has left could be.
  __device__ RowState state_of(std::int64_t cell) const {
    const float2 state = __ldcg(reinterpret_cast<const float2*>(params.partials.states + cell));
    return {state.x, state.y};
  }

  /// A row, by a warp. The maximum follows batch by batch, so that nothing is read twice.
  __device__ __forceinline__ void merge(const WorkTile& work, int row) const {
    RowState state{-INFINITY, 0};
    float4 columns[kQuads] = {};
#pragma unroll 1
    for (int begin = part; begin <= work.last_part; begin += kAtOnce) {
      RowState states[kAtOnce];
      float4 read[kAtOnce][kQuads];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) load(begin + i, work.last_part, row, states[i], read[i]);
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
  /// Behind the last part: a result of weight 0.
  __device__ __forceinline__ void load(int of, int last, int row, RowState& state, float4 (&columns)[kQuads]) const {
    const std::int64_t at = cell(of, row);
    state = of <= last ? state_of(at) : RowState{-INFINITY, 0};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int column = 4 * (32 * j + lane);
      columns[j] = of <= last && column < params.head_dim_v
                       ? __ldcg(reinterpret_cast<const float4*>(params.partials.out + at * params.head_dim_v + column))
                       : float4{};
    }
  }
  __device__ __forceinline__ void store(const ResultRow& result, const RowState& state, const float4 (&columns)[kQuads]) const {
    if (lane == 0) result.store_lse(params, state, score.scale_log2);
    const float factor = state.sum == 0 ? 0 : 1 / result.denominator(params, state, score.scale_log2);
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      const int column = 4 * (32 * j + lane);
      if (column < params.head_dim_v) result.store(params, column, scaled(columns[j], factor));
    }
  }

  const Params& params;
  const ScoreTransform<Warp>& score;
  const int kv_head, part, warp, lane;
};

}  // namespace fovea::gpu::portable::paged_attention
