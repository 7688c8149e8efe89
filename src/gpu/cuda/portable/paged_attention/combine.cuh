// SPDX-License-Identifier: Apache-2.0
/// Merges the partial results of query tiles that several parts share, in the order of the parts.
#pragma once

#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/portable/paged_attention/launch.hpp"
#include "gpu/cuda/portable/paged_attention/merge.cuh"
#include "gpu/cuda/portable/paged_attention/score.cuh"
#include "gpu/cuda/portable/paged_attention/walk.cuh"

namespace fovea::gpu::portable::paged_attention {

/// The rows of one query tile of one kv head, a warp for each.
class Combine {
 public:
  __device__ Combine(const Params& params_, int row_tile_, int kv_head_)
      : params(params_), row_tile(row_tile_), kv_head(kv_head_), lane(static_cast<int>(threadIdx.x) % 32) {}

  /// `boundary`: the part that begins inside of the query tile; the one before begins no later than the tile.
  __device__ void operator()(const QueryTile& tile, int boundary, std::int64_t part_length, int row) const {
    const int first = boundary - 1, last = static_cast<int>((tile.end - 1) / part_length);
    const float scale_log2 = Score(params, kv_head).scale_log2;
    const auto cell = [&](int part) {
      return (std::int64_t{paged_attention::slot_of(part, tile, part_length)} * params.kv_heads + kv_head) * row_tile + row;
    };
    // Each lane has the state of every 32nd part.
    RowState state{-INFINITY, 0};
    for (int part = first + lane; part <= last; part += 32)
      state.maximum = fmaxf(state.maximum, params.partials.states[cell(part)].maximum);
    state.maximum = Warp::largest_of_warp(state.maximum);
    float4 columns[kChunks] = {};
    for (int begin = first; begin <= last; begin += 32) {
      const std::int64_t own = cell(min(begin + lane, last));
      const RowState of = params.partials.states[own];
      const float weight = begin + lane <= last ? of.sum * weight_of(of, state.maximum, scale_log2) : 0;
      state.sum += Warp::sum_of_warp(weight);
      const int count = min(32, last - begin + 1);
#pragma unroll 8
      for (int i = 0; i < count; ++i) {
        const std::int64_t from = __shfl_sync(~0u, own, i);
        add(columns, params.partials.out + from * params.head_dim_v, __shfl_sync(~0u, weight, i));
      }
    }
    store(ResultRow(params, tile.sequence.q_begin, kv_head, tile.row + row), state, columns, scale_log2);
  }

 private:
  static constexpr int kChunks = 2;  // of four columns, of each lane, at most

  __device__ int column(int chunk) const { return 128 * chunk + 4 * lane; }
  __device__ void add(float4 (&columns)[kChunks], const float* from, float weight) const {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (column(chunk) >= params.head_dim_v) continue;
      const float4 x = *reinterpret_cast<const float4*>(from + column(chunk));
      float4& to = columns[chunk];
      to = {fmaf(weight, x.x, to.x), fmaf(weight, x.y, to.y), fmaf(weight, x.z, to.z), fmaf(weight, x.w, to.w)};
    }
  }
  __device__ void store(const ResultRow& result, const RowState& state, const float4 (&columns)[kChunks], float scale_log2) const {
    if (lane == 0) result.store_lse(params, state, scale_log2);
    const float factor = state.sum == 0 ? 0 : 1 / result.denominator(params, state, scale_log2);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const float x[] = {columns[chunk].x, columns[chunk].y, columns[chunk].z, columns[chunk].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column(chunk) + i < params.head_dim_v) result.store(params, column(chunk) + i, factor == 0 ? 0 : x[i] * factor);
      }
    }
  }

  const Params& params;
  const int row_tile, kv_head, lane;
};

/// Of the parts that begin inside of a query tile, the first one's CTA merges its rows. Grid: parts but one, and kv heads; fours of rows.
template <int kRowTile>
__global__ void __launch_bounds__(kThreads) combine_parts(const __grid_constant__ Params params) {
  const int boundary = static_cast<int>(blockIdx.x) / params.kv_heads + 1, kv_head = static_cast<int>(blockIdx.x) % params.kv_heads;
  const int row = static_cast<int>(blockIdx.y) * kWarps + static_cast<int>(threadIdx.x) / 32;
  Line<kRowTile> line(params);
  const std::int64_t position = boundary * line.part_length;
  QueryTile tile{};
  bool merges = position < line.total;
  if (merges) {
    tile = line.at(position);
    const bool begins_before = tile.begin < position && tile.begin >= position - line.part_length;
    merges = begins_before && !line.is_whole(tile) && tile.row + row < tile.sequence.rows;
  }
  // What lengths say is known before. Without this, the next kernel would not wait for results that need no merge.
  wait_for_previous_kernel();
  if (merges) Combine(params, kRowTile, kv_head)(tile, boundary, line.part_length, row);
}

}  // namespace fovea::gpu::portable::paged_attention
