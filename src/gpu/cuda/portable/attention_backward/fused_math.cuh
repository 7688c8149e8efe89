// SPDX-License-Identifier: Apache-2.0
/// The math of the fused kernel: transposed scores of 32 keys a warp pair, then dv, dk and, through
/// shared memory, dq.
///
/// The warps of a pair split the queries of a tile for scores, and the head dims for dk and dv.
/// Each multiplies its own p and ds from registers, and those of the other warp from shared memory.
/// All warps read ds there for dq, a tile later.
#pragma once

#include "gpu/cuda/common/named_barrier.cuh"
#include "gpu/cuda/portable/attention_backward/biased/scores.cuh"
#include "gpu/cuda/portable/attention_backward/fused_sums.cuh"
#include "gpu/cuda/portable/attention_backward/gemm.cuh"
#include "gpu/cuda/portable/attention_backward/load.cuh"
#include "gpu/cuda/portable/attention_backward/scores.cuh"
#include "gpu/cuda/portable/attention_backward/store.cuh"

namespace fovea::gpu::portable::attention_backward {

/// p and ds of a tile, as SwizzledRows of keys.
template <class Config>
struct FusedStorage : Storage<Config> {
  static constexpr int kBytes = Config::kRows * 2 * Config::kColumns;
  alignas(128) std::byte p[kBytes];
  alignas(128) std::byte ds[Config::kScoreStages][kBytes];
};

template <class Config>
class FusedMath {
 public:
  __device__ FusedMath(const Params& params_, FusedStorage<Config>& storage_)
      : params(params_),
        storage(storage_),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(uniform_warp()),
        warp_key(warp / Config::kQueryWarps * Config::kWarpRows),
        half(warp % Config::kQueryWarps),
        late(warp / 4 % 2 != 0) {}

  __device__ __forceinline__ void operator()(const Loader<Config>& load) {
    const Work& work = storage.work;
    const int tiles = work.columns.size(), heads = params.heads_per_kv, count = heads * tiles;
    // CTAs of one head begin apart. A right bound of the mask alone sees to that.
    const bool full = work.low <= 1 - work.rows;
    const int start = full && tiles > 0 ? static_cast<int>(blockIdx.x) % tiles : 0;
    Step step{work.head * heads, work.columns.first + start}, before{};
    clear(dk);
    clear(dv);
    load.rows();
    if (count > 0) load.columns(step, 0);
    copy_async_commit();
    for (int i = 0; i < count; ++i) {
      const int stage = i % 2;
      const Step now = step;
      if (++step.tile == work.columns.last) step.tile = work.columns.first;
      if (step.tile == work.columns.first + start) ++step.head;
      copy_async_wait<0>();
      __syncthreads();  // this tile and the last one's ds have arrived
      if (i + 1 < count) load.columns(step, 1 - stage);
      copy_async_commit();
      const bool adds = i > 0;  // the tile before to dq
      const int ds_before = (i - 1) % Config::kScoreStages;
      if (adds && !late) add_to_dq(before, ds_before);
      add(now, stage, i % Config::kScoreStages, [&] {
        if (adds && late) add_to_dq(before, ds_before);
      });
      before = now;
    }
    copy_async_wait<0>();
    __syncthreads();
    if (count > 0) add_to_dq(before, (count - 1) % Config::kScoreStages);
    const Store<Config> store(params, storage);
    store(dk, params.dk, params.head_dim_qk, params.scale, warp_key, half * (Config::kHeadDimQk / 2));
    const float of_kept = Config::kBiased ? params.bias.keep_factor : 1;
    store(dv, params.dv, params.head_dim_v, of_kept, warp_key, half * (Config::kHeadDimV / 2));
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kBlocks = Config::kBlocks, kQueries = Config::kWarpQueries;
  static constexpr int kScores = kQueries / 2;  // accumulators of a lane, of a block
  static constexpr int kSteps = kQueries / 16;  // MMAs over a warp's queries
  using Rows = SwizzledRows<Config::kColumns>;  // of p and ds

  /// The warp's number in the CTA. The biased kernel lacks registers, and a number that all lanes share takes none of them.
  static __device__ __forceinline__ int uniform_warp() {
    const int number = static_cast<int>(threadIdx.x) / 32;
    return Config::kBiased ? __shfl_sync(~0u, number, 0) : number;
  }

  template <int kCount>
  static __device__ __forceinline__ void clear(float (&sums)[kBlocks][kCount]) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (float& x : sums[b]) x = 0;
    }
  }

  /// First query of the tile's half minus the warp's first key.
  __device__ __forceinline__ int difference(int tile, int of_half) const {
    return tile * Config::kColumns + of_half * kQueries - storage.work.row - warp_key;
  }
  /// Last query of the sequence minus the first of the tile's half.
  __device__ __forceinline__ int last_query(int tile, int of_half) const {
    return storage.work.sequence.seq_q - 1 - tile * Config::kColumns - of_half * kQueries;
  }
  /// Whether a query of this half of the tile sees a key of this pair.
  __device__ __forceinline__ bool sees(int tile, int of_half) const {
    const int first = difference(tile, of_half);
    return first - (Config::kWarpRows - 1) <= storage.work.high && first + kQueries - 1 >= storage.work.low &&
           last_query(tile, of_half) >= 0;
  }

  /// Adds a tile of queries to dk and dv, and leaves its ds in shared memory. `late_work` reads
  /// the ds of the tile before.
  template <class Late>
  __device__ __forceinline__ void add(Step step, int stage, int ds_stage, const Late& late_work) {
    const int tile = step.tile;
    std::uint32_t p[kBlocks][kScores / 2] = {}, ds[kBlocks][kScores / 2] = {};
    const bool seen = sees(tile, half), pair_sees = seen || sees(tile, 1 - half);
    if (seen) score(step, stage, p, ds);
    if constexpr (Config::kScoreStages == 1) {
      late_work();
      __syncthreads();  // dq has read the tile before
    }
    keep(storage.p, p);
    keep(storage.ds[ds_stage], ds);
    if (pair_sees) {
      named_sync(1 + warp / Config::kQueryWarps, 32 * Config::kQueryWarps);
      accumulate<Config::kHeadDimV>(dv, p, storage.p, storage.columns_v[stage]);
      accumulate<Config::kHeadDimQk>(dk, ds, storage.ds[ds_stage], storage.columns_qk[stage]);
    }
    if constexpr (Config::kScoreStages == 2) late_work();
  }

  __device__ __forceinline__ void score(Step step, int stage, std::uint32_t (&p)[kBlocks][kScores / 2],
                                        std::uint32_t (&ds)[kBlocks][kScores / 2]) const {
    using Gemm = WarpGemm<Element, kBlocks, kQueries>;
    const Work& work = storage.work;
    const int tile = step.tile;
    float scores[kBlocks][kScores], dp[kBlocks][kScores];
    const std::byte* const q = storage.columns_qk[stage] + half * kQueries * 2 * Config::kHeadDimQk;
    const std::byte* const dout = storage.columns_v[stage] + half * kQueries * 2 * Config::kHeadDimV;
    const ScoreGradient<true> gradient{params};
    const ColumnStats<Config::kColumns>& stats = storage.stats[stage];
    const OfQuery of_query{stats, half * kQueries + lane_column(lane)};
    const int natural = stats.natural[half * kQueries / kQueryTile], first = difference(tile, half);
    Gemm::template gemm_ss<Config::kHeadDimQk>(scores, storage.rows_qk, warp_key, q);
    if constexpr (Config::kBiased) {
      const BiasedBlock<Config> biased{params, storage, step.head, tile, stage, warp_key, half * kQueries};
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) biased.below(16 * b).weigh(scores[b], natural, of_query);
      Gemm::template gemm_ss<Config::kHeadDimV>(dp, storage.rows_v, warp_key, dout);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) biased.below(16 * b).multiply(scores[b], dp[b], of_query);
    } else if (params.softcap == 0 && natural == 0) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) gradient.weigh(scores[b], of_query);  // beside the next MMAs
      Gemm::template gemm_ss<Config::kHeadDimV>(dp, storage.rows_v, warp_key, dout);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) gradient.multiply(scores[b], dp[b], of_query);
    } else {
      Gemm::template gemm_ss<Config::kHeadDimV>(dp, storage.rows_v, warp_key, dout);
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) gradient.differentiate(scores[b], dp[b], natural, of_query);
    }
    // Absent rows are zeros, whose scores are NaN where the other side is infinite.
    const int last_key = work.rows - 1 - work.row - warp_key, last = last_query(tile, half);
    const bool edge = first - (Config::kWarpRows - 1) < work.low || first + kQueries - 1 > work.high || last < kQueries - 1 ||
                      last_key < Config::kWarpRows - 1;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      if (edge) {
        gradient.mask(scores[b], dp[b], first - 16 * b, {work.low, work.high, last_key - 16 * b, last});
      }
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        p[b][i / 2] = pack<Element>(scores[b][i], scores[b][i + 1]);
        ds[b][i / 2] = pack<Element>(dp[b][i], dp[b][i + 1]);
      }
    }
  }
  struct OfQuery {
    const ColumnStats<Config::kColumns>& stats;
    int first;

    __device__ __forceinline__ float minus_lse(int i) const { return stats.minus_lse[first + column_of(i)]; }
    __device__ __forceinline__ float delta(int i) const { return stats.delta[first + column_of(i)]; }
  };

  /// Stores the warp's part of p or ds.
  __device__ __forceinline__ void keep(std::byte* to, const std::uint32_t (&pairs)[kBlocks][kScores / 2]) const {
    const int row = warp_key + lane_row(lane);
    const std::uint32_t at = shared_address(to) + Rows::offset(row, half * (kQueries / 8)) + 2 * lane_column(lane);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) {
        const int below = 16 * b + 8 * row_of(2 * i);
        store_shared_32(Rows::advanced(at, column_of(2 * i)) + below * Rows::kRowBytes, pairs[b][i]);
      }
    }
  }

  /// sums (32 keys x half of kDim) += weights (32 keys x queries of the tile) columns (queries x
  /// half of kDim)
  template <int kDim>
  __device__ __forceinline__ void accumulate(float (&sums)[kBlocks][kDim / 4], const std::uint32_t (&own)[kBlocks][kScores / 2],
                                             const std::byte* weights, const std::byte* columns) const {
    using Layout = SwizzledRows<kDim>;
    const MatrixPlace place = a_operand_place(lane);
    const std::uint32_t of_columns = Layout::advanced(shared_address(columns) + Layout::offset(place.row, place.chunk), half * (kDim / 2));
    const std::uint32_t others =
        Rows::advanced(shared_address(weights) + Rows::offset(warp_key + place.row, place.chunk), (1 - half) * kQueries);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t first[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int i = 0; i < 4; ++i) first[b][i] = own[b][4 * step + i];
      }
      multiply<kDim>(sums, first, of_columns + (half * kQueries + 16 * step) * Layout::kRowBytes);
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t first[kBlocks][4];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) ldmatrix(first[b], Rows::advanced(others, 16 * step) + b * 16 * Rows::kRowBytes);
      multiply<kDim>(sums, first, of_columns + ((1 - half) * kQueries + 16 * step) * Layout::kRowBytes);
    }
  }
  template <int kDim>
  static __device__ __forceinline__ void multiply(float (&sums)[kBlocks][kDim / 4], const std::uint32_t (&first)[kBlocks][4],
                                                  std::uint32_t columns) {
#pragma unroll
    for (int n = 0; n < kDim / 32; ++n) {
      std::uint32_t second[4];
      ldmatrix_trans(second, SwizzledRows<kDim>::advanced(columns, 16 * n));
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        mma<Element>(&sums[b][8 * n], first[b], second[0], second[1]);
        mma<Element>(&sums[b][8 * n + 4], first[b], second[2], second[3]);
      }
    }
  }

  /// Adds ds (queries x keys) k (keys x columns) of a tile to dq. A warp has 32 queries and kWide
  /// columns.
  __device__ __forceinline__ void add_to_dq(Step of, int ds_stage) const {
    using Keys = SwizzledRows<Config::kHeadDimQk>;
    constexpr int kWide = Config::kDqColumns, kAcross = Config::kHeadDimQk / kWide;
    const int row = warp / kAcross * 32, column = warp % kAcross * kWide;
    const MatrixPlace ds_place = b_operand_place(lane), k_place = a_operand_place(lane);
    const std::uint32_t ds = Rows::advanced(shared_address(storage.ds[ds_stage]) + Rows::offset(ds_place.row, ds_place.chunk), row);
    const std::uint32_t k = Keys::advanced(shared_address(storage.rows_qk) + Keys::offset(k_place.row, k_place.chunk), column);
    float sums[2][kWide / 2] = {};
#pragma unroll
    for (int step = 0; step < Config::kRows / 16; ++step) {
      std::uint32_t first[2][4];
#pragma unroll
      for (int b = 0; b < 2; ++b) ldmatrix_trans(first[b], Rows::advanced(ds, 16 * b) + step * 16 * Rows::kRowBytes);
#pragma unroll
      for (int n = 0; n < kWide / 16; ++n) {
        std::uint32_t second[4];
        ldmatrix_trans(second, Keys::advanced(k, 16 * n) + step * 16 * Keys::kRowBytes);
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          mma<Element>(&sums[b][8 * n], first[b], second[0], second[1]);
          mma<Element>(&sums[b][8 * n + 4], first[b], second[2], second[3]);
        }
      }
    }
    using Sums = typename Config::Sums;
    const Sequence& at = storage.work.sequence;
    const int query = of.tile * Config::kColumns + row;
    if (Config::kColumns > kQueryTile && query >= at.seq_q) return;  // maybe another sequence's sums
    const std::int64_t cell = std::int64_t{of.head} * params.query_tiles + at.query_tile + query / kQueryTile;
    float* const to = params.dq_sums + cell * Sums::kCount + Sums::offset(row % kQueryTile / 16, column / 8);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
#pragma unroll
      for (int n = 0; n < kWide / 8; ++n) {
        const float* const x = &sums[b][4 * n];
        Sums::add(to + b * Sums::kNextRows + n * Sums::kNextColumns, lane, {x[0], x[1], x[2], x[3]});
      }
    }
  }

  const Params& params;
  FusedStorage<Config>& storage;
  const int lane, warp, warp_key, half;  // the pair's first key; which half of a tile
  const bool late;                       // one of a scheduler's two warps does dq last, so that their phases differ
  float dk[kBlocks][Config::kHeadDimQk / 4], dv[kBlocks][Config::kHeadDimV / 4];
};

}  // namespace fovea::gpu::portable::attention_backward
