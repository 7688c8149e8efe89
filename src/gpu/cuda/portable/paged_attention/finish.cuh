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
  __device__ Finish(const Params& params_, Storage<Config>& storage_, const Score& score_, int kv_head_)
      : params(params_), storage(storage_), score(score_), kv_head(kv_head_), lane(static_cast<int>(threadIdx.x) % 32) {}

  __device__ __forceinline__ void operator()() const {
    const float of_values = params.v.scale == nullptr ? 1.0f : params.v.scale[kv_head * params.v.scale_stride];
#pragma unroll 1
    for (int row = static_cast<int>(threadIdx.x) / 32; row < storage.work.rows; row += kWarps) {
      float columns[kColumns];
      const RowState state = merged(row, columns);
      const ResultRow result(params, storage.work.q_begin, kv_head, storage.work.row + row);
      const bool partial = storage.work.slot >= 0;
      const float sum = partial ? state.sum : result.denominator(params, state, score.scale_log2);
      const float factor = state.sum == 0 ? 0 : of_values / sum;
      if (!partial && lane == 0) result.store_lse(params, state, score.scale_log2);
      const std::int64_t cell = (std::int64_t{storage.work.slot} * params.kv_heads + kv_head) * Config::kRowTile + row;
      if (partial && lane == 0) params.partials.states[cell] = state;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int column = 32 * c + lane;
        if (column >= params.head_dim_v) continue;
        const float x = factor == 0 ? 0 : columns[c] * factor;
        if (partial) {
          params.partials.out[cell * params.head_dim_v + column] = x;
        } else {
          result.store(params, column, x);
        }
      }
    }
  }

 private:
  using Cache = typename Config::Cache;
  static constexpr int kColumns = Config::kHeadDim / 32;
  /// No array: the compiler would give it the place of scores as long, which would lie in memory then, as this does.
  struct AllColumns {
    float x[ExactRow<Cache>::kColumns];
  };

  /// The state of a row and its columns 32 c + lane, relative to its maximum, over all groups of keys.
  __device__ __forceinline__ RowState merged(int row, float (&columns)[kColumns]) const {
    RowState state{-INFINITY, 0};
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) state.maximum = fmaxf(state.maximum, storage.states[group][row].maximum);
#pragma unroll
    for (float& x : columns) x = 0;
#pragma unroll
    for (int group = 0; group < Config::kGroups; ++group) {
      const RowState of = storage.states[group][row];
      const float weight = weight_of(of, state.maximum, score.scale_log2);
      state.sum = fmaf(weight, of.sum, state.sum);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) columns[c] = fmaf(weight, storage.results(group, row)[32 * c + lane], columns[c]);
    }
    // A value that only other rows see may have come in: 0 * NaN is NaN.
    float zero = 0;
#pragma unroll
    for (const float x : columns) zero = fmaf(x, 0.0f, zero);
    if (storage.work.uneven && __any_sync(~0u, zero != 0)) exact(row, state.maximum, columns);
    return state;
  }

  __device__ __forceinline__ void exact(int row, float maximum, float (&columns)[kColumns]) const {
    AllColumns all;
    if (std::is_same_v<Cache, __nv_bfloat16> || (Config::kQuantised && params.bf16)) {
      compute_again<__nv_bfloat16>(*this, row, maximum, all);
    } else {
      compute_again<__half>(*this, row, maximum, all);
    }
#pragma unroll
    for (int c = 0; c < kColumns; ++c) columns[c] = all.x[c];
  }
  template <class Query>
  static __device__ __noinline__ void compute_again(const Finish& finish, int row, float maximum, AllColumns& columns) {
    finish.template compute_row<Query>(row, maximum, columns);
  }
  template <class Query>
  __device__ __forceinline__ void compute_row(int row, float maximum, AllColumns& columns) const {
    const WorkTile& work = storage.work;
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
        max(seen.begin, work.first * kKeyTile), min(seen.end, work.last * kKeyTile), maximum, score.scale_log2, row_of,
        [&](float product, int) { return score(product); }, columns.x);
  }

  const Params& params;
  Storage<Config>& storage;
  const Score& score;
  const int kv_head, lane;
};

}  // namespace fovea::gpu::portable::paged_attention
