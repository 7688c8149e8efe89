// SPDX-License-Identifier: Apache-2.0
/// The math of a warp: scores of its rows and of each tile of columns, then the gradient of the rows, which stays in
/// registers. Names are those of rows of queries; with rows of keys, k and q, and v and dout, change places.
#pragma once

#include "gpu/cuda/portable/attention_backward/biased/scores.cuh"
#include "gpu/cuda/portable/attention_backward/gemm.cuh"
#include "gpu/cuda/portable/attention_backward/listed_bits.cuh"
#include "gpu/cuda/portable/attention_backward/listed_steps.cuh"
#include "gpu/cuda/portable/attention_backward/load.cuh"
#include "gpu/cuda/portable/attention_backward/scores.cuh"
#include "gpu/cuda/portable/attention_backward/store.cuh"

namespace fovea::gpu::portable::attention_backward {

template <class Config>
class Math {
 public:
  using Params = typename Config::Params;

  __device__ Math(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp_row(static_cast<int>(threadIdx.x) / 32 * Config::kWarpRows) {}

  __device__ __forceinline__ void operator()(const Loader<Config>& load) {
    if constexpr (Config::kLists) {
      listed_columns(load);
    } else {
      all_columns(load);
    }
    copy_async_wait<0>();
    const Store<Config> store(params, storage);
    if constexpr (Config::kOfScores) store(of_scores, kQueries ? params.dq : params.dk, params.head_dim_qk, params.scale, warp_row);
    const float of_kept = Config::kBiased ? params.bias.keep_factor : 1;
    if constexpr (Config::kOfValues) store(of_values, params.dv, params.head_dim_v, of_kept, warp_row);
  }

 private:
  using Element = typename Config::Element;
  static constexpr bool kQueries = Config::kRowsAreQueries;
  static constexpr int kBlocks = Config::kBlocks, kScores = Config::kColumns / 2;  // accumulators of a lane for a block
  using Gemm = WarpGemm<Element, kBlocks, Config::kColumns>;

  __device__ __forceinline__ void all_columns(const Loader<Config>& load) {
    const int first = storage.work.columns.first, last = storage.work.columns.last, heads = kQueries ? 1 : params.heads_per_kv;
    Step step{kQueries ? storage.work.head / params.heads_per_kv : storage.work.head * heads, first};
    int left = heads * (last - first), stage = 0;
    load.rows();
    if (left > 0) load.columns(step, 0);
    copy_async_commit();
    begin();
    for (; left > 0; --left) {
      const Step now = step;
      if (++step.tile == last) step = {step.head + 1, first};
      turn(
          load, now, step, [&] { return left > 1; }, stage);
    }
  }
  __device__ __forceinline__ void listed_columns(const Loader<Config>& load) {
    ListedSteps<Config> steps(params, storage.work);
    int stage = 0;
    load.rows();
    if (steps.any()) load.columns(steps.step, 0);
    copy_async_commit();
    begin();
    while (steps.any()) {
      const ListedColumns now = steps.step;
      steps.advance();
      turn(
          load, now, steps.step, [&] { return steps.any(); }, stage);
    }
  }
  /// Adds the columns of a step, and loads those of the next one.
  template <class Step, class More>
  __device__ __forceinline__ void turn(const Loader<Config>& load, const Step& now, const Step& next, const More& more, int& stage) {
    copy_async_wait<0>();
    __syncthreads();  // this tile has arrived, and the one before has been read
    if (Config::kStages == 2) {
      if (more()) load.columns(next, 1 - stage);
      copy_async_commit();
    }
    if (sees(now.tile)) add(now, stage);
    if (Config::kStages == 2) {
      stage = 1 - stage;
    } else {
      __syncthreads();  // the tile has been read
      if (more()) load.columns(next, 0);
      copy_async_commit();
    }
  }

  __device__ __forceinline__ void begin() {
    clear(of_scores);
    clear(of_values);
    if constexpr (kQueries) {
      const Work& work = storage.work;
      const RowStats* stats = params.stats + std::int64_t{work.head} * params.query_tiles + work.sequence.query_tile;
      natural = work.row + warp_row < work.rows ? stats[(work.row + warp_row) / kQueryTile].natural : 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const int token = work.row + warp_row + 16 * b + lane_row(lane) + 8 * r;
          const bool present = token < work.rows;
          minus_lse[b][r] = present ? stats[token / kQueryTile].minus_lse[token % kQueryTile] : -INFINITY;
          delta[b][r] = present ? stats[token / kQueryTile].delta[token % kQueryTile] : 0;
        }
      }
    }
  }
  template <int kCount>
  static __device__ __forceinline__ void clear(float (&sums)[kBlocks][kCount]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : sums[b]) x = 0;
    }
  }

  /// First column of the tile minus the warp's first row.
  __device__ __forceinline__ int difference(int tile) const { return tile * Config::kColumns - storage.work.row - warp_row; }
  /// Whether a row of this warp sees a column of the tile.
  __device__ __forceinline__ bool sees(int tile) const {
    const int first = difference(tile);
    return first - (Config::kWarpRows - 1) <= storage.work.high && first + Config::kColumns - 1 >= storage.work.low;
  }

  /// Adds a tile of columns to the gradient.
  template <class Step>
  __device__ __forceinline__ void add(Step step, int stage) {
    const int tile = step.tile;
    float scores[kBlocks][kScores], dp[kBlocks][kScores];
    std::uint32_t p[kBlocks][kScores / 2], ds[kBlocks][kScores / 2];
    const ScoreGradient<Config::kOfScores> gradient{params};
    BitsOf<Config> bits;
    if constexpr (Config::kLists) bits.load(step.bits, params.lists.of.block_k / 32, warp_row);
    Gemm::template gemm_ss<Config::kHeadDimQk>(scores, storage.rows_qk, warp_row, storage.columns_qk[stage]);
    if constexpr (Config::kOfScores) {
      Gemm::template gemm_ss<Config::kHeadDimV>(dp, storage.rows_v, warp_row, storage.columns_v[stage]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int own_natural = kQueries ? natural : storage.stats[stage].natural[0];
      if constexpr (Config::kBiased) {
        const int head = kQueries ? storage.work.head : step.head;
        const auto biased = BiasedBlock<Config>{params, storage, head, tile, stage, warp_row, 0}.below(16 * b);
        biased.differentiate(scores[b], dp[b], own_natural, OfQuery{*this, b, stage});
      } else {
        gradient.differentiate(scores[b], dp[b], own_natural, OfQuery{*this, b, stage});
      }
      const int first = difference(tile);
      if (first - (Config::kWarpRows - 1) < storage.work.low || first + Config::kColumns - 1 > storage.work.high) {
        gradient.mask(scores[b], dp[b], first - 16 * b, {storage.work.low, storage.work.high});
      }
      if constexpr (Config::kLists) bits.keep(b, scores[b], dp[b]);
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        if constexpr (Config::kOfValues) p[b][i / 2] = pack<Element>(scores[b][i], scores[b][i + 1]);
        if constexpr (Config::kOfScores) ds[b][i / 2] = pack<Element>(dp[b][i], dp[b][i + 1]);
      }
    }
    if constexpr (Config::kOfValues) Gemm::template gemm_rs<Config::kHeadDimV>(of_values, p, storage.columns_v[stage]);
    if constexpr (Config::kOfScores) Gemm::template gemm_rs<Config::kHeadDimQk>(of_scores, ds, storage.columns_qk[stage]);
  }

  /// Numbers of the queries of a block's accumulators.
  struct OfQuery {
    const Math& math;
    int block, stage;

    __device__ __forceinline__ float minus_lse(int i) const {
      if constexpr (kQueries) return math.minus_lse[block][row_of(i)];
      return math.storage.stats[stage].minus_lse[column_of(i) + lane_column(math.lane)];
    }
    __device__ __forceinline__ float delta(int i) const {
      if constexpr (kQueries) return math.delta[block][row_of(i)];
      return math.storage.stats[stage].delta[column_of(i) + lane_column(math.lane)];
    }
  };

  const Params& params;
  Storage<Config>& storage;
  const int lane, warp_row;                                                      // of the CTA's rows, the warp's first
  float minus_lse[kQueries ? kBlocks : 1][2], delta[kQueries ? kBlocks : 1][2];  // of rows of queries
  int natural = 0;
  float of_scores[kBlocks][Config::kOfScores ? Config::kHeadDimQk / 2 : 1];  // dq, or dk
  float of_values[kBlocks][Config::kOfValues ? Config::kHeadDimV / 2 : 1];   // dv
};

}  // namespace fovea::gpu::portable::attention_backward
