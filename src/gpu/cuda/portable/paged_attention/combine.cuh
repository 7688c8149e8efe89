// SPDX-License-Identifier: Apache-2.0
/// Merges the partial results of query tiles that several parts share, in the order of the parts.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/portable/paged_attention/beside.cuh"
#include "gpu/cuda/portable/paged_attention/launch.hpp"
#include "gpu/cuda/portable/paged_attention/merge.cuh"
#include "gpu/cuda/portable/paged_attention/score.cuh"
#include "gpu/cuda/portable/paged_attention/walk.cuh"

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kManyParts = 16;  // of a sequence, on average

/// A row of a query tile of one kv head, by a warp: all of its columns, or every fourth 32 where the row has four warps. Then there are
/// many parts, and what a warp reads of them all is on its way at once. Nothing is read through the L1 cache, where what a kernel before
/// this one has left could be.
template <bool kMany>
class Combine {
 public:
  __device__ Combine(const Params& params_, int row_tile_, int kv_head_)
      : params(params_), row_tile(row_tile_), kv_head(kv_head_), lane(static_cast<int>(threadIdx.x) % 32) {}

  /// Parts [first, last] share the query tile. A rehearsal reads and stores nothing; it loads the code.
  __device__ __forceinline__ void operator()(const QueryTile& tile, int first, int last, int part_length, int row, bool rehearsal) const {
    const float scale_log2 = Score(params, kv_head).scale_log2;
    const auto cell = [&](int part) {
      return (std::int64_t{paged_attention::slot_of(part, tile, part_length)} * params.kv_heads + kv_head) * row_tile + row;
    };
    // Each lane has the state of every 32nd part.
    RowState state{-INFINITY, 0};
    const bool few = last - first < 32;
    if (!few && !rehearsal) {
      for (int part = first + lane; part <= last; part += 32) state.maximum = fmaxf(state.maximum, state_of(cell(part)).maximum);
      state.maximum = Warp::largest_of_warp(state.maximum);
    }
    Columns columns[kChunks] = {};
    for (int begin = first; begin <= last; begin += 32) {
      const std::int64_t own = cell(min(begin + lane, last));
      const int count = rehearsal ? 0 : min(32, last - begin + 1);
      RowState of{-INFINITY, 0};
      if (lane < count) of = state_of(own);
      float weight = 0;
      int i = 0;
      do {
        Columns read[kAtOnce][kChunks] = {};
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const float* from = params.partials.out + __shfl_sync(~0u, own, i + j) * params.head_dim_v;
          if (i + j < count) load(read[j], from);
        }
        if (i == 0) {
          if (few) state.maximum = Warp::largest_of_warp(of.maximum);
          weight = lane < count ? of.sum * weight_of(of, state.maximum, scale_log2) : 0;
          state.sum += Warp::sum_of_warp(weight);
        }
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) add(columns, read[j], __shfl_sync(~0u, weight, i + j));
        i += kAtOnce;
      } while (i < count);
      if (rehearsal) break;
    }
    if (!rehearsal) store(ResultRow(params, tile.sequence.q_begin, kv_head, tile.row + row), state, columns, scale_log2);
  }

 private:
  static constexpr int kWidth = kMany ? 1 : 4, kChunks = 2;  // neighbouring columns of a lane, and how often, at most
  static constexpr int kAtOnce = kMany ? 32 : 4;             // parts
  struct Columns {
    float x[kWidth];
  };

  __device__ RowState state_of(std::int64_t cell) const {
    const float2 state = __ldcg(reinterpret_cast<const float2*>(params.partials.states + cell));
    return {state.x, state.y};
  }
  __device__ int column(int chunk) const { return 128 * chunk + (kMany ? static_cast<int>(threadIdx.x) % kThreads : kWidth * lane); }
  __device__ __forceinline__ void load(Columns (&columns)[kChunks], const float* from) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (column(chunk) >= params.head_dim_v) continue;
      if constexpr (kMany) {
        columns[chunk] = {__ldcg(from + column(chunk))};
      } else {
        const float4 x = __ldcg(reinterpret_cast<const float4*>(from + column(chunk)));
        columns[chunk] = {x.x, x.y, x.z, x.w};
      }
    }
  }
  static __device__ __forceinline__ void add(Columns (&to)[kChunks], const Columns (&columns)[kChunks], float weight) {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) to[chunk].x[i] = fmaf(weight, columns[chunk].x[i], to[chunk].x[i]);
    }
  }
  __device__ void store(const ResultRow& result, const RowState& state, const Columns (&columns)[kChunks], float scale_log2) const {
    if (lane == 0 && column(0) == 0) result.store_lse(params, state, scale_log2);
    const float factor = state.sum == 0 ? 0 : 1 / result.denominator(params, state, scale_log2);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (column(chunk) + i < params.head_dim_v) result.store(params, column(chunk) + i, factor == 0 ? 0 : columns[chunk].x[i] * factor);
      }
    }
  }

  const Params& params;
  const int row_tile, kv_head, lane;
};

/// Calls merge(true) while the kernel before runs, and merge(false) after it. All CTAs wait: else the next kernel would not wait for
/// results that need no merge. What lengths say is known before, by the fence of a kernel that runs beside others.
template <class Merge>
__device__ __forceinline__ void in_two_passes(const Merge& merge) {
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {
    if (pass == 1) wait_for_previous_kernel();
    merge(pass == 0);
  }
}

/// Of the parts that begin inside of a query tile, the first one's CTA merges its rows. Grid: parts but one, and kv heads; fours of rows.
template <int kRowTile>
__global__ void __launch_bounds__(kThreads) combine_parts(const __grid_constant__ Params params) {
  const int boundary = static_cast<int>(blockIdx.x) / params.kv_heads + 1, kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
  const int row = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  see_earlier_kernels(params);
  Line<kRowTile> line(params);
  const int position = boundary * line.part_length;
  QueryTile tile{};
  bool merges = position < line.total;
  if (merges) {
    tile = line.at(position);
    const bool begins_before = tile.begin < position && tile.begin >= position - line.part_length;
    merges = begins_before && !line.is_whole(tile) && tile.row + row < tile.sequence.rows;
  }
  in_two_passes([&](bool rehearsal) {
    if (!merges) return;
    Combine<false>(params, kRowTile, kv_head)(tile, boundary - 1, (tile.end - 1) / line.part_length, line.part_length, row, rehearsal);
  });
}

/// The same where there are far more parts than sequences, each of one query tile: a CTA for each row. Grid: sequences and kv heads; rows.
template <int kRowTile>
__global__ void __launch_bounds__(kThreads) combine_many_parts(const __grid_constant__ Params params) {
  const int index = static_cast<int>(blockIdx.x) / params.kv_heads, kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
  const int row = static_cast<int>(blockIdx.y);
  see_earlier_kernels(params);
  Line<kRowTile> line(params);
  const QueryTile tile = line.of_sequence(index);
  const int first = tile.begin / line.part_length, last = (tile.end - 1) / line.part_length;
  const bool merges = row < tile.sequence.rows && last > first && !line.is_whole(tile);
  in_two_passes([&](bool rehearsal) {
    if (merges) Combine<true>(params, kRowTile, kv_head)(tile, first, last, line.part_length, row, rehearsal);
  });
}

}  // namespace fovea::gpu::portable::paged_attention
