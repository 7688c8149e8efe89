// SPDX-License-Identifier: Apache-2.0
/// dQ of 64 queries in the registers of a warpgroup. Rows of accumulators are queries, columns are keys or
/// channels.
#pragma once

#include "gpu/cuda/sm90/attention_backward/score_math.cuh"
#include "gpu/cuda/sm90/attention_backward/separate_dq/query_tile.cuh"
#include "gpu/cuda/sm90/gemm.cuh"

namespace fovea::gpu::sm90::attention_backward {

template <class Config>
class Dq {
 public:
  __device__ Dq(const Params& params_, QueryStorage<Config>& storage_, const QueryRows& rows_, int cell_)
      : params(params_), storage(storage_), rows(rows_), cell(cell_) {}

  __device__ __forceinline__ void operator()() {
    clear(dq);
    load_stats();
    barrier_wait(shared_address(&storage.q_full), 0);
    for (int tile = rows.first, last = rows.last; tile < last; ++tile) step(tile * Config::kKeyTile);
    store();
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kScores = Config::kKeyTile / 2, kDq = Config::kHeadDimQk / 2;  // accumulators of a lane

  __device__ __forceinline__ int first_query() const { return rows.token + cell * kQueryTile; }
  /// The number of this query tile in the workspace.
  __device__ __forceinline__ std::int64_t workspace_cell() const {
    return std::int64_t{rows.head} * params.query_tiles + rows.sequence.query_tile + first_query() / kQueryTile;
  }

  /// Loads RowStats from L2, as this kernel does not wait for the one before. A tile past the sequence has
  /// none, and no gradient.
  __device__ __forceinline__ void load_stats() {
    const bool some = first_query() < rows.sequence.seq_q;
    const RowStats* stats = params.stats + (some ? workspace_cell() : 0);
    natural = some ? __ldcg(&stats->natural) : 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      minus_lse[r] = some ? __ldcg(&stats->minus_lse[lane_row() + 8 * r]) : -INFINITY;
      delta[r] = some ? __ldcg(&stats->delta[lane_row() + 8 * r]) : 0;
    }
  }
  /// Accumulators i and i + 1 are of the same query.
  static __device__ __forceinline__ auto row_stats(const float (&of)[2]) {
    return [&of](int i) { return float2{of[row_of(i)], of[row_of(i)]}; };
  }

  __device__ __forceinline__ void step(int first_key) {
    const SlicedTile k{shared_address(storage.k[keys.stage]), Config::kKeySliceBytes};
    const SlicedTile v{shared_address(storage.v[values.stage]), Config::kKeySliceBytes};
    barrier_wait(shared_address(&storage.k_full[keys.stage]), keys.parity);
    gemm_ss<Element, Config::kHeadDimQk, Config::kKeyTile>(scores, queries_of(storage.q), k);
    barrier_wait(shared_address(&storage.v_full[values.stage]), values.parity);
    gemm_ss<Element, Config::kHeadDimV, Config::kKeyTile>(dp, queries_of(storage.dout), v);
    wgmma_wait<1>();
    fence_operand(scores);
    exponentiate<Config::kSoftcap>(params, uniform(natural) != 0, scores, row_stats(minus_lse),
                                   [&](int i, Weight weight) { scores[i] = weight.p * weight.slope; });
    mask(first_key);
    round_to<Element>(ds, scores);
    wgmma_wait<0>();
    fence_operand(dp);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.v_empty[values.stage]));
    differentiate_scores<Element>(ds, ds, dp, row_stats(delta));
    gemm_rs<Element, Config::kKeyTile, Config::kHeadDimQk>(dq, ds, k);
    wgmma_wait<0>();
    fence_operand(dq);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.k_empty[keys.stage]));
    keys.advance();
    values.advance();
  }

  __device__ __forceinline__ SlicedTile queries_of(const std::byte* tile) const {
    return {shared_address(tile) + cell * Config::kCellBytes, Config::kQuerySliceBytes};
  }

  /// Zeroes keys that a query does not see, and keys past the end, whose zeros would have a probability.
  __device__ __forceinline__ void mask(int first_key) {
    const int first = first_key - first_query(), keys_left = rows.sequence.seq_k - first_key;
    if (!((first - (kQueryTile - 1) < rows.low) | (first + Config::kKeyTile - 1 > rows.high) | (keys_left < Config::kKeyTile))) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int difference = first + lane_column(lane_index()) - lane_row() - 8 * r;
      keep_columns(scores, r, rows.low - difference, min(rows.high - difference, keys_left - 1 - lane_column(lane_index())));
    }
  }

  __device__ __forceinline__ void store() {
    if (first_query() >= rows.sequence.seq_q) return;
    if (params.leaks && not_finite(dq)) params.dq_not_finite[workspace_cell()] = 1;
    stage_rows<Element, Config::kHeadDimQk>(dq, {params.scale, params.scale}, queries_of(storage.q));
    fence_shared_for_async();
    named_sync(kWarpgroup + cell, 128);
    if (thread_index() % 128 != 0) return;
    store_clipped<Config::kSlicesQk>(queries_of(storage.q).at, Config::kQuerySliceBytes, params.dq, rows.place(cell));
    tma_store_wait_read();
  }

  const Params& params;
  QueryStorage<Config>& storage;
  const QueryRows& rows;
  const int cell;  // of this CTA
  PipelineState<Config::kKeyStages> keys;
  PipelineState<Config::kValueStages> values;
  int natural = 0;  // RowStats
  float minus_lse[2], delta[2];
  float scores[kScores], dp[kScores], dq[kDq];
  std::uint32_t ds[kScores / 2];
};

}  // namespace fovea::gpu::sm90::attention_backward
