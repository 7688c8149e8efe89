// SPDX-License-Identifier: Apache-2.0
/// The gradient of a bias: a CTA for a tile of its rows and key tiles beside each other. It sums over all that the bias is broadcast
/// to, in the order of sequences, heads, query tiles and key tiles, so results are the same bits from run to run.
#pragma once

#include "gpu/cuda/portable/attention_backward/biased/scores.cuh"
#include "gpu/cuda/portable/attention_backward/gemm.cuh"
#include "gpu/cuda/portable/attention_backward/kernel.cuh"

namespace fovea::gpu::portable::attention_backward {

template <class Config>
class BiasMath {
 public:
  __device__ BiasMath(const Params& params_, Storage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp_row(static_cast<int>(threadIdx.x) / 32 * Config::kWarpRows) {}

  __device__ __forceinline__ void operator()() {
    const detail::BiasStrides& of = params.dbias_extents;
    const auto ceil = [](std::int64_t count, int tile) { return static_cast<int>((count + tile - 1) / tile); };
    const int row_tiles = ceil(of.row, Config::kRows), groups = ceil(of.key, Config::kColumns * params.dbias_group);
    int index = static_cast<int>(blockIdx.x);
    const int group = index % groups;
    index /= groups;
    const int row_tile = index % row_tiles, plane = index / row_tiles;
    const int batch = plane / static_cast<int>(of.head), head = plane % static_cast<int>(of.head);
    const Range batches = range(of.batch, batch, params.batch), heads = range(of.head, head, params.heads);
    for (int key_tile = group * params.dbias_group; key_tile < min((group + 1) * params.dbias_group, ceil(of.key, Config::kColumns));
         ++key_tile) {
      clear();
      for (int b = batches.first; b < batches.last; ++b) {
        for (int h = heads.first; h < heads.last; ++h) add_head(b, h, row_tile, key_tile);
      }
      store(batch, head, row_tile, key_tile);
    }
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kBlocks = Config::kBlocks, kScores = Config::kColumns / 2;
  using Gemm = WarpGemm<Element, kBlocks, Config::kColumns>;

  struct Range {
    int first, last;
  };
  /// `own`, or all where the bias is broadcast.
  static __device__ Range range(std::int64_t extent, int own, int all) { return extent == 1 ? Range{0, all} : Range{own, own + 1}; }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : sums[b]) x = 0;
    }
  }

  __device__ __forceinline__ void add_head(int b, int head, int own_row_tile, int own_key_tile) {
    const Sequence at = sequence(params, b);
    const auto tiles = [](int length, int tile) { return (length + tile - 1) / tile; };
    const Range rows = range(params.dbias_extents.row, own_row_tile, tiles(at.seq_q, Config::kRows));
    const Range keys = range(params.dbias_extents.key, own_key_tile, tiles(at.seq_k, Config::kColumns));
    for (int row = rows.first; row < min(rows.last, tiles(at.seq_q, Config::kRows)); ++row) {
      const detail::GradientOrder order = order_of(params, at, Config::kColumns, Config::kRows);
      const Work work{.sequence = at,
                      .head = head,
                      .row = row * Config::kRows,
                      .rows = at.seq_q,
                      .low = order.low,
                      .high = order.high,
                      .columns = {},
                      .none = false};
      for (int key = keys.first; key < min(keys.last, tiles(at.seq_k, Config::kColumns)); ++key) {
        const int first = key * Config::kColumns - work.row;
        if (first - (Config::kRows - 1) > order.high || first + Config::kColumns - 1 < order.low) continue;
        load(work, key);
        add(key);
      }
    }
  }

  /// Loads a key tile, and the queries unless shared memory has them.
  __device__ __forceinline__ void load(const Work& work, int key_tile) {
    const Work& held = storage.work;
    const bool kept = !held.none && held.sequence.query_tile == work.sequence.query_tile && held.head == work.head && held.row == work.row;
    __syncthreads();  // all has been read
    if (threadIdx.x == 0 && !kept) storage.work = work;
    __syncthreads();
    const Loader<Config> loader(params, storage);
    if (!kept) {
      loader.rows();
      load_stats();
    }
    loader.columns({work.head / params.heads_per_kv, key_tile}, 0);
    copy_async_commit();
    copy_async_wait<0>();
    __syncthreads();
  }

  __device__ __forceinline__ void load_stats() {
    const Work& work = storage.work;
    const RowStats* const stats = params.stats + std::int64_t{work.head} * params.query_tiles + work.sequence.query_tile;
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

  __device__ __forceinline__ void add(int tile) {
    const Work& work = storage.work;
    float scores[kBlocks][kScores], dp[kBlocks][kScores];
    Gemm::template gemm_ss<Config::kHeadDimQk>(scores, storage.rows_qk, warp_row, storage.columns_qk[0]);
    Gemm::template gemm_ss<Config::kHeadDimV>(dp, storage.rows_v, warp_row, storage.columns_v[0]);
    const ScoreGradient<true> gradient{params};
    const int first = tile * Config::kColumns - work.row - warp_row, last_row = work.rows - 1 - work.row - warp_row;
    const int last_column = work.sequence.seq_k - 1 - tile * Config::kColumns;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const BiasedBlock<Config> biased{params, storage, work.head, tile, 0, warp_row + 16 * b, 0};
      biased.template differentiate<true>(scores[b], dp[b], natural, OfQuery{*this, b});
      gradient.mask(scores[b], dp[b], first - 16 * b, {work.low, work.high, last_row - 16 * b, last_column});
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (minus_lse[b][row_of(i)] != -INFINITY) sums[b][i] += dp[b][i];  // a row that the bias hides may have a NaN of dout
      }
    }
  }
  struct OfQuery {
    const BiasMath& math;
    int block;

    __device__ __forceinline__ float minus_lse(int i) const { return math.minus_lse[block][row_of(i)]; }
    __device__ __forceinline__ float delta(int i) const { return math.delta[block][row_of(i)]; }
  };

  /// Sums rows and columns that the bias is broadcast to, in their order, and stores what is left.
  __device__ __forceinline__ void store(int batch, int head, int row_tile, int key_tile) {
    const detail::BiasStrides &of = params.dbias_extents, &to = params.dbias_strides;
    // The sums take the place of keys and values.
    static_assert(sizeof(float) * Config::kRows * Config::kColumns <= sizeof(storage.columns_qk) + sizeof(storage.columns_v));
    float* const totals = reinterpret_cast<float*>(&storage.columns_qk);
    auto* const plane = static_cast<Element*>(params.dbias) + batch * to.batch + head * to.head;
    const bool of_rows = of.row != 1, of_keys = of.key != 1;
    const int thread = static_cast<int>(threadIdx.x);
    const auto put = [&](int row, int key, float x) {
      const std::int64_t of_row = of_rows ? std::int64_t{row_tile} * Config::kRows + row : 0;
      const std::int64_t of_key = of_keys ? std::int64_t{key_tile} * Config::kColumns + key : 0;
      if (of_row < of.row && of_key < of.key) from_f32(x, plane[of_row * to.row + of_key * to.key]);
    };
    __syncthreads();  // all has been read
    keep_sums(totals);
    __syncthreads();
    if (of_rows && of_keys) {
      for (int i = thread; i < Config::kRows * Config::kColumns; i += Config::kThreads)
        put(i / Config::kColumns, i % Config::kColumns, totals[i]);
      return;
    }
    if (of_keys) {
      if (thread < Config::kColumns) put(0, thread, total(totals + thread, Config::kRows, Config::kColumns));
      return;
    }
    float x = 0;
    if (thread < Config::kRows) x = total(totals + thread * Config::kColumns, Config::kColumns, 1);
    if (of_rows) {
      if (thread < Config::kRows) put(thread, 0, x);
      return;
    }
    __syncthreads();
    if (thread < Config::kRows) totals[thread] = x;
    __syncthreads();
    if (thread == 0) put(0, 0, total(totals, Config::kRows, 1));
  }
  static __device__ float total(const float* from, int count, int stride) {
    float sum = 0;
    for (int i = 0; i < count; ++i) sum += from[i * stride];
    return sum;
  }
  __device__ __forceinline__ void keep_sums(float* totals) const {
    float* const to = totals + (warp_row + lane_row(lane)) * Config::kColumns + lane_column(lane);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) to[(16 * b + 8 * row_of(i)) * Config::kColumns + column_of(i)] = sums[b][i];
    }
  }
  static_assert(Config::kRows <= Config::kThreads);

  const Params& params;
  Storage<Config>& storage;
  const int lane, warp_row;
  float minus_lse[kBlocks][2], delta[kBlocks][2];
  int natural = 0;
  float sums[kBlocks][kScores];
};

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) differentiate_bias(const __grid_constant__ Params params) {
  if constexpr (kTarget != 75) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    if (threadIdx.x == 0) {
      storage.work.none = true;
      find_random(params, storage);
    }
    __syncthreads();
    BiasMath<Config>{params, storage}();
  }
}

template <class Element, int kRow>
CudaStatus launch_dbias(const Params& params, int ordinal, Stream stream) {
  using Config = BiasedConfig<Element, kRow, Gradients::dq>;
  const detail::BiasStrides& of = params.dbias_extents;
  if (const CudaStatus good = allow_shared_bytes<&differentiate_bias<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const auto ceil = [](std::int64_t count, std::int64_t tile) { return (count + tile - 1) / tile; };
  const std::int64_t ctas = of.batch * of.head * ceil(of.row, Config::kRows) * ceil(of.key, Config::kColumns * params.dbias_group);
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&differentiate_bias<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::attention_backward
