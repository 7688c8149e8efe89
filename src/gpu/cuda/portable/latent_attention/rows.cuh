// SPDX-License-Identifier: Apache-2.0
/// Rows of queries and of results, and the columns of a warp in them.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/portable/latent_attention/storage.cuh"

namespace fovea::gpu::portable::latent_attention {

/// Column of a step, counted from the first of a warp's part; a part has every kParts-th step of 16 columns.
template <class Config>
__device__ constexpr int first_column(int step) {
  constexpr int kOfSpan = 4 / Config::kParts;
  return step / kOfSpan * 64 + step % kOfSpan * (16 * Config::kParts);
}

/// Row `own` of a query tile, which may be one that the tile lacks.
template <class Config>
struct TileRow {
  const Params& params;
  const WorkTile& work;
  int kv_head, own;

  /// Loads a lane's columns of the query for steps from kFirst on, as row r of A operands; zeros without one. `first`: column of step 0.
  template <int kFirst, int kCount>
  __device__ __forceinline__ void load(int first, int r, std::uint32_t (&queries)[kCount][4]) const {
    const std::uint16_t* from = nullptr;
    if (own < work.rows) from = static_cast<const std::uint16_t*>(params.q) + place().in(params.q_strides) + first;
#pragma unroll
    for (int step = 0; step < kCount; ++step) {
#pragma unroll
      for (int half = 0; half < 2; ++half) queries[step][2 * half + r] = query_pair(from, first_column<Config>(kFirst + step) + 8 * half);
    }
  }

  /// Copies eight columns of the query of each span to shared memory; zeros without one.
  __device__ __forceinline__ void copy_chunks(std::uint32_t to, int chunk, int spans) const {
    const bool present = own < work.rows;
    const auto* from = static_cast<const std::uint16_t*>(params.q);
    if (present) from += place().in(params.q_strides) + 8 * chunk;
#pragma unroll 1
    for (int span = 0; span < spans; ++span) {
      if (!present) {  // stored, as an asynchronous copy wants an aligned address even of 0 bytes
        store_shared_128(to + 128 * span, {});
      } else if (params.q_chunks) {
        copy_async(to + 128 * span, from + 64 * span);
      } else {
        copy_units<std::uint16_t>(to + 128 * span, from + 64 * span, 16);
      }
    }
  }

  /// Stores a lane's columns, row r of accumulators, from `column` on: as results or as partial ones. `largest`: of its scores.
  template <int kOut>
  __device__ __forceinline__ void store(const paged_attention::RowState& state, float largest, float scale_log2, int column,
                                        const float (&out)[kOut], int r) const {
    if (own >= work.rows) return;
    const float value_scale = cache_scale_of(params);
    if (work.slot >= 0) {
      const std::int64_t cell = cell_of(params, work.slot, kv_head, own, Config::kRowTile);
      if (column == 0) params.partials.states[cell] = state;
      if (column == 0) params.partial_largest[cell] = largest;
      const float factor = state.sum == 0 ? 0 : value_scale / state.sum;
      store_row(params.partials.out + cell * kValueDim + column, out, r, factor, 0, kValueDim);
      return;
    }
    const RowResult result{state.sum, state.maximum * scale_log2, largest};
    if (column == 0) result.store(params, place(), scale_log2);
    auto* to = static_cast<std::uint16_t*>(params.out) + place().in(params.out_strides) + column;
    store_result(to, out, r, result.normalise(params, place().head, value_scale));
  }

 private:
  __device__ RowPlace place() const { return RowPlace(params, work, kv_head, work.row + own); }

  /// Two neighbours of a query row; zeros without one.
  __device__ __forceinline__ std::uint32_t query_pair(const std::uint16_t* from, int column) const {
    if (from == nullptr) return 0;
    if (params.q_aligned) return *reinterpret_cast<const std::uint32_t*>(from + column);
    return from[column] | std::uint32_t{from[column + 1]} << 16;
  }
  template <int kOut>
  __device__ __forceinline__ void store_result(std::uint16_t* to, const float (&out)[kOut], int r, float factor) const {
#pragma unroll
    for (int i = 2 * r; i < kOut; i += 4) {
      const std::uint32_t pair = factor == 0 ? 0 : pack<typename Config::Element>(out[i] * factor, out[i + 1] * factor);
      if (params.out_aligned) {
        *reinterpret_cast<std::uint32_t*>(to + column_of(i)) = pair;
      } else {
        to[column_of(i)] = static_cast<std::uint16_t>(pair);
        to[column_of(i) + 1] = static_cast<std::uint16_t>(pair >> 16);
      }
    }
  }
};

}  // namespace fovea::gpu::portable::latent_attention
