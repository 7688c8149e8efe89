// SPDX-License-Identifier: Apache-2.0
/// From the accumulators of a work tile, which lie in shared memory, to results or partial results: a warp for each row.
#pragma once

#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/portable/paged_attention/load.cuh"
#include "gpu/cuda/portable/paged_attention/math.cuh"
#include "gpu/cuda/portable/paged_attention/merge.cuh"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
class Finish {
 public:
  __device__ Finish(const Params& params_, Storage<Config>& storage_, const WorkTile& work_, const Score& score_, int kv_head_)
      : params(params_),
        storage(storage_),
        work(work_),
        score(score_),
        place(params_),
        kv_head(kv_head_),
        lane(static_cast<int>(threadIdx.x) % 32),
        count(Config::kOwnKeys ? params_.head_warps : 1),
        first(Config::kOwnKeys ? place.head * count : 0) {}

  /// Shared memory answers late while copies of other CTAs queue up before it, so a row reads all that it needs at once.
  __device__ __forceinline__ void operator()(float of_values) const {
    const bool partial = work.slot >= 0;
#pragma unroll 1
    for (int row = place.of_head; row < work.rows; row += params.head_warps) {
      float4 columns[kQuads];
      const RowState state = merged(row, columns);
      const ResultRow result(params, work.q_begin, kv_head, work.row + row);
      const float factor = state.sum == 0 ? 0 : of_values / (partial ? state.sum : result.denominator(params, state, score.scale_log2));
      const std::int64_t cell = (std::int64_t{work.slot} * params.kv_heads + kv_head) * Config::kRowTile + row;
      float* partial_row = params.partials.out + cell * params.head_dim_v;
      if (lane == 0) {
        if (partial) {
          params.partials.states[cell] = state;
        } else {
          result.store_lse(params, state, score.scale_log2);
        }
      }
      float zero = 0;
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const float4 x = columns[i];
        zero = fmaf(x.x, 0.0f, fmaf(x.y, 0.0f, fmaf(x.z, 0.0f, fmaf(x.w, 0.0f, zero))));
        const int column = 4 * (32 * i + lane);
        if (column >= params.head_dim_v) continue;
        const float4 y = factor == 0 ? float4{} : float4{x.x * factor, x.y * factor, x.z * factor, x.w * factor};
        if (partial) {
          *reinterpret_cast<float4*>(partial_row + column) = y;
        } else {
          result.store(params, column, y);
        }
      }
      // A value that only other rows see may have come in: 0 * NaN is NaN.
      if (!work.uneven || !__any_sync(~0u, zero != 0)) continue;
      __syncwarp();  // stores of this row by other lanes come first
      exact(row, state.maximum, [&](int column, float x) {
        if (column >= params.head_dim_v) return;
        x = factor == 0 ? 0 : x * factor;
        if (partial) {
          partial_row[column] = x;
        } else {
          result.store(params, column, x);
        }
      });
    }
  }

 private:
  using Cache = typename Config::Cache;
  static constexpr int kQuads = (Config::kHeadDim + 127) / 128;  // of neighbouring columns, of a lane
  /// No array: the compiler would give it the place of scores as long, which would lie in memory then, as this does.
  struct AllColumns {
    float x[ExactRow<Cache>::kColumns];
  };

  /// The state of a row and its columns 4 (32 i + lane) and the three behind, relative to its maximum, over the keys of all warps.
  __device__ __forceinline__ RowState merged(int row, float4 (&columns)[kQuads]) const {
    RowState of[Config::kResults];
    float4 read[Config::kResults][kQuads] = {};
#pragma unroll
    for (int i = 0; i < Config::kResults; ++i) {
      of[i] = i < count ? storage.states[first + i][row] : RowState{-INFINITY, 0};
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const int column = 4 * (32 * j + lane);
        if (i < count && column < Config::kHeadDim) read[i][j] = *reinterpret_cast<const float4*>(storage.results(first + i, row) + column);
      }
    }
    RowState state{-INFINITY, 0};
#pragma unroll
    for (const RowState& one : of) state.maximum = fmaxf(state.maximum, one.maximum);
#pragma unroll
    for (float4& x : columns) x = {};
#pragma unroll
    for (int i = 0; i < Config::kResults; ++i) {
      if (i >= count) break;
      const float weight = weight_of(of[i], state.maximum, score.scale_log2);
      state.sum = fmaf(weight, of[i].sum, state.sum);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const float4 x = read[i][j];
        columns[j] = {fmaf(weight, x.x, columns[j].x), fmaf(weight, x.y, columns[j].y), fmaf(weight, x.z, columns[j].z),
                      fmaf(weight, x.w, columns[j].w)};
      }
    }
    return state;
  }

  template <class Store>
  __device__ __forceinline__ void exact(int row, float maximum, const Store& store) const {
    AllColumns all;
    if (std::is_same_v<Cache, __nv_bfloat16> || (Config::kQuantised && params.bf16)) {
      compute_again<__nv_bfloat16>(*this, row, maximum, all);
    } else {
      compute_again<__half>(*this, row, maximum, all);
    }
#pragma unroll 1
    for (int c = 0; c < ExactRow<Cache>::kColumns; ++c) store(32 * c + lane, all.x[c]);
  }
  template <class Query>
  static __device__ __noinline__ void compute_again(const Finish& finish, int row, float maximum, AllColumns& columns) {
    finish.template compute_row<Query>(row, maximum, columns);
  }
  template <class Query>
  __device__ __forceinline__ void compute_row(int row, float maximum, AllColumns& columns) const {
    const ResultRow at(params, work.q_begin, kv_head, work.row + row);
    const ExactRow<Query> one{static_cast<const Query*>(params.q) + at.token * params.q_strides.row + at.head * params.q_strides.head,
                              params.head_dim_qk, params.head_dim_v};
    const Seen seen = Seen::of_row(params, work, row);
    const auto row_of = [&](int key) {
      const Slot slot = slot_of(params, key, look_up(params, work.sequence, key));
      const auto in = [&](const paged_attention::Cache& cache) {
        return reinterpret_cast<const Cache*>(slot.block < 0 ? nullptr
                                                             : cache.data + kv_head * cache.strides.head + slot.at(cache.strides));
      };
      return KeyRow<Cache>{in(params.k), in(params.v)};
    };
    one(
        max(seen.begin, work.first << params.log2_tile), min(seen.end, work.last << params.log2_tile), maximum, score.scale_log2, row_of,
        [&](float product, int) { return score(product); }, columns.x);
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const Score& score;
  const WarpPlace place;
  const int kv_head, lane;
  const int count, first;  // of the results that are merged
};

}  // namespace fovea::gpu::portable::paged_attention
