// SPDX-License-Identifier: Apache-2.0
/// The epilogue: accumulators of a work tile, in shared memory, become results or partial results.
#pragma once

#include "gpu/cuda/common/exact_row.cuh"
#include "gpu/cuda/portable/paged_attention/exact_codes.cuh"
#include "gpu/cuda/portable/paged_attention/load.cuh"
#include "gpu/cuda/portable/paged_attention/math.cuh"
#include "gpu/cuda/portable/paged_attention/reduce.cuh"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
class Epilogue {
 public:
  __device__ Epilogue(const Params& params_, Storage<Config>& storage_, const WorkTile& work_, const ScoreTransform<Warp>& score_,
                      int kv_head_)
      : params(params_),
        storage(storage_),
        work(work_),
        score(score_),
        kv_head(kv_head_),
        lane(static_cast<int>(threadIdx.x) % 32),
        of_row(lane % kRowLanes) {}

  /// `v_scale`: scale of the values. A row issues all of its loads from shared memory together: they wait behind the
  /// copies of other CTAs.
  __device__ __forceinline__ void operator()(float v_scale) const {
    const bool partial = work.slot >= 0;
#pragma unroll 1
    for (int first = static_cast<int>(threadIdx.x) / 32 * kRowsAtOnce; first < work.rows; first += kWarps * kRowsAtOnce) {
      const int row = first + lane / kRowLanes;
      const bool wanted = row < work.rows;
      float4 columns[kQuads];
      const RowState state = reduced(row, columns);
      const ResultRow result(params, work.q_begin, kv_head, work.row + row);
      const float factor = state.sum == 0 ? 0 : v_scale / (partial ? state.sum : result.denominator(params, state, score.scale_log2));
      const std::int64_t cell = cell_of<Config>(params, work.slot, kv_head, row);
      float* partial_row = params.partials.out + cell * params.head_dim_v;
      if (wanted && of_row == 0) {
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
        const int column = 4 * (kRowLanes * i + of_row);
        if (!wanted || column >= params.head_dim_v) continue;
        const float4 y = scaled(x, factor);
        if (partial) {
          *reinterpret_cast<float4*>(partial_row + column) = y;
        } else {
          result.store(params, column, y);
        }
      }
      // A value that only other rows see may be NaN or infinite, and 0 times it is NaN.
      if (!Config::kMasked && !work.uneven) continue;
      const unsigned spoiled = __ballot_sync(~0u, wanted && zero != 0);
      if (spoiled != 0) compute_again(spoiled, first, factor * state.sum);
    }
  }

 private:
  using Cache = typename Config::Cache;
  static constexpr int kQuads = Config::kQuads, kRowLanes = Config::kRowLanes, kRowsAtOnce = 32 / kRowLanes;

  /// The state of a row over the keys of all warps, and the lane's quads of columns, relative to the maximum.
  __device__ __forceinline__ RowState reduced(int row, float4 (&columns)[kQuads]) const {
    RowState of[Config::kResults];
    float4 read[Config::kResults][kQuads] = {};
#pragma unroll
    for (int i = 0; i < Config::kResults; ++i) {
      of[i] = storage.states[i][row];
#pragma unroll
      for (int j = 0; j < kQuads; ++j) {
        const int column = 4 * (kRowLanes * j + of_row);
        if (column < Config::kHeadDim) read[i][j] = *reinterpret_cast<const float4*>(storage.results(i, row) + column);
      }
    }
    RowState state{-INFINITY, 0};
#pragma unroll
    for (const RowState& one : of) state.maximum = fmaxf(state.maximum, one.maximum);
#pragma unroll
    for (float4& x : columns) x = {};
#pragma unroll
    for (int i = 0; i < Config::kResults; ++i) {
      const float weight = weight_of(of[i], state.maximum, score.scale_log2);
      state.sum = fmaf(weight, of[i].sum, state.sum);
#pragma unroll
      for (int j = 0; j < kQuads; ++j) add_weighted(columns[j], read[i][j], weight);
    }
    return state;
  }

  /// Computes rows `first` and following again: those of the lanes in `spoiled`.
  __device__ __forceinline__ void compute_again(unsigned spoiled, int first, float share) const {
    constexpr bool kBf16 = std::is_same_v<typename Config::Element, __nv_bfloat16>;
    __syncwarp();  // stores of these rows by other lanes come first
#pragma unroll 1
    for (int row = 0; row < kRowsAtOnce; ++row) {
      if ((spoiled >> row * kRowLanes & ~0u >> (32 - kRowLanes)) == 0) continue;
      const float its_share = __shfl_sync(~0u, share, row * kRowLanes);
      if (kBf16 || (Config::kQuantised && params.bf16)) {
        compute_again<__nv_bfloat16>(params, work, kv_head, first + row, its_share);
      } else {
        compute_again<__half>(params, work, kv_head, first + row, its_share);
      }
    }
  }

  /// Computes a row by scalar code: the weighted mean of its values, times `share`. The call is rare. It takes scalars
  /// by value: an object passed by reference would be stored to local memory in every work tile.
  template <class Query>
  static __device__ __noinline__ void compute_again(const Params& params, const WorkTile& work, int kv_head, int row, float share) {
    const ResultRow result(params, work.q_begin, kv_head, work.row + row);
    const ScoreTransform<Warp> score = score_transform(params, kv_head);
    const auto* q = static_cast<const Query*>(params.q) + result.token * params.q_strides.row + result.head * params.q_strides.head;
    const VisibleKeys seen = VisibleKeys::of_row(params, work, row);
    float columns[ExactRow<Query>::kColumns];
    if constexpr (Config::kCoded) {
      const ExactCodedRow<Query, Cache> one{q, params.head_dim_qk, params.head_dim_v};
      const auto rows_of = [&](int key) {
        const Slot slot = slot_of(params, key, look_up(params, work.sequence, key));
        const auto in = [&](const paged_attention::Cache& cache, const RowCodes& codes) {
          const auto at = [&](const std::byte* data, const detail::CacheStrides& strides) {
            return slot.block < 0 ? nullptr : data + kv_head * strides.head + slot.at(strides);
          };
          const std::byte *row = at(cache.data, cache.strides), *scales = at(cache.scales, cache.scale_strides);
          if constexpr (Config::kDecodes)
            return DecodedRow<typename Config::Element>{row, scales, codes, !cache.scale_words};
          else
            return CodedRow<Cache>{row, scales, !cache.scale_words};
        };
        return std::pair{in(params.k, params.k_codes), in(params.v, params.v_codes)};
      };
      one(seen.begin, seen.end, score.scale_log2, rows_of, score, columns);
    } else {
      const ExactRow<Query> one{q, params.head_dim_qk, params.head_dim_v};
      const auto row_of = [&](int key) {
        const Slot slot = slot_of(params, key, look_up(params, work.sequence, key));
        const auto in = [&](const paged_attention::Cache& cache) {
          return reinterpret_cast<const Cache*>(slot.block < 0 ? nullptr
                                                               : cache.data + kv_head * cache.strides.head + slot.at(cache.strides));
        };
        return KeyRow<Cache>{in(params.k), in(params.v)};
      };
      const auto transformed = [&](float product, int) { return score(product); };
      if constexpr (Config::kMasked) {
        const RowBits bits = bits_of_row(params, mask_begin(params, work), work, row);
        one(seen.begin, seen.end, score.scale_log2, row_of, transformed, columns, [&](int key) { return bits.shows(key); });
      } else {
        one(seen.begin, seen.end, score.scale_log2, row_of, transformed, columns);
      }
    }
    const std::int64_t cell = cell_of<Config>(params, work.slot, kv_head, row);
#pragma unroll
    for (int c = 0; c < ExactRow<Query>::kColumns; ++c) {
      const int column = 32 * c + static_cast<int>(threadIdx.x) % 32;
      if (column >= params.head_dim_v) continue;
      const float x = share == 0 ? 0 : columns[c] * share;
      if (work.slot >= 0) {
        params.partials.out[cell * params.head_dim_v + column] = x;
      } else {
        result.store(params, column, x);
      }
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  const ScoreTransform<Warp>& score;
  const int kv_head, lane, of_row;  // of_row: the lane's place among those of its row
};

}  // namespace fovea::gpu::portable::paged_attention
