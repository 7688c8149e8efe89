// SPDX-License-Identifier: Apache-2.0
/// The epilogue of a warpgroup: normalisation, lse, and the stores of both.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/dense/alibi.cuh"
#include "gpu/cuda/sm90/dense/e4m3_softmax.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/gemm.cuh"
#include "gpu/cuda/sm90/store_rows.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::dense {

/// Number in the query tile of the lane's r-th row.
__device__ inline int tile_row(int warpgroup, int r) {
  return warpgroup * kWarpgroupRows + thread_index() % 128 / 32 * 16 + lane_index() / 4 + 8 * r;
}

template <class Config>
class Epilogue {
 public:
  using Range = std::conditional_t<Config::k8BitValues, E4m3SumRange, FloatRange>;
  static constexpr int kScores = Config::kKeyTile / 2;
  static constexpr int kAhead = std::is_same_v<typename Config::Element, __half> ? 6 : 24;  // f16 has no small probabilities
  using Softmax =
      std::conditional_t<kAlibi<Config>, AlibiSoftmax<kScores, kAhead>,
                         std::conditional_t<(Config::kRawStages > 0), E4m3Softmax<kScores>, OnlineSoftmax<Warp, kScores, Range>>>;
  static constexpr int kOut = Config::kHeadDimV / 2;

  using Params = typename Config::Params;

  /// Rows of this warp that are not finite, and whether a warp of the warpgroup has some that are staged.
  struct Unfinished : RowPair {
    bool any_staged = false;
  };

  __device__ Epilogue(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_), part(warpgroup_) {}

  /// Stores the results of a work tile and returns it to the scheduler. `out` is relative to
  /// 2^softmax.base().
  __device__ __forceinline__ void operator()(WorkSlots slots, Softmax softmax, float (&out)[kOut], ScoreScale scale) {
    finish(slots, store(slots, softmax, out, scale), scale);
  }
  /// The first part, which may overlap MMAs of the next work tile. Returns the rows for the second.
  __device__ __forceinline__ Unfinished store(WorkSlots slots, Softmax softmax, const float (&out)[kOut], ScoreScale scale) {
    const WorkTile& work = storage.work_tiles[slots.work];
    part = rows_of_warpgroup<Config>(warpgroup, slots.work);
    softmax.reduce_sum();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = normaliser(work, r, softmax.sum[r], softmax.base(r, scale.log2), softmax.top(r, scale.log2));
    // Masked keys, or a sink that hides all keys, give values the weight 0, and 0 times NaN is NaN.
    const bool hides = kListed<Config> || kMasked<Config> || work.full_first > work.first || work.full_last < work.last;
    const bool may_be_nan = hides || params.sink != nullptr;
    Unfinished rows{};
    if (may_be_nan) {
      const auto weight = [&](int r) { return factor[r] * softmax.sum[r] * (Config::k8Bit ? kOne / softmax.top(r, scale.log2) : 1); };
      rows = {{{not_finite(out, 0), not_finite(out, 1)}, {weight(0), weight(1)}}};
    }
    if (stores_f32()) {
      store_f32(work, out, factor);
    } else if constexpr (Config::kStagedResults) {
      rows.any_staged = store_staged(work, slots, out, factor, any(rows));
    } else {
      store_16_bit<typename Config::Result>(work, out, factor);
    }
    const bool second = lane_index() % 2 == 1;  // row whose lse this lane stores
    const float base = second ? softmax.base(1, scale.log2) : softmax.base(0, scale.log2);
    store_lse(work, second, base + Warp::log2(second ? softmax.sum[1] : softmax.sum[0]));
    return rows;
  }
  /// Returns the slot of staged results to the producer, once TMA has read it.
  __device__ __forceinline__ void return_staged(int slot) const {
    if (!is_first()) return;
    tma_store_wait_read();
    barrier_arrive(shared_address(&storage.q_empty[slot]));
  }
  /// The second part. Its call serialises MMAs that are in flight.
  __device__ __forceinline__ void finish(WorkSlots slots, const Unfinished& rows, ScoreScale scale) {
    if (Config::kStagedResults && rows.any_staged) await_stores();
    if (any(rows)) recompute_rows(storage.work_tiles[slots.work], rows, scale);
    release(slots);
  }

 protected:
  /// Returns the work tile to the scheduler. From a barrier, unlike __syncwarp(), ptxas learns that warps
  /// have converged after a call: else it keeps the stages of the key loop in vector registers.
  __device__ __forceinline__ void release(WorkSlots slots) const {
    named_sync(kWarpgroup + warpgroup, 128);
    if (is_first()) barrier_arrive(shared_address(&storage.work_empty[slots.work]));
  }
  /// Whether this thread is the first of the warpgroup, which issues its bulk copies.
  static __device__ __forceinline__ bool is_first() { return thread_index() % 128 == 0; }
  static __device__ __forceinline__ bool any(const RowPair& rows) { return (rows.lanes[0] | rows.lanes[1]) != 0; }

  /// Place of the lane's r-th row.
  __device__ RowPlace place(const WorkTile& work, int r) const { return work.place(tile_row(part, r), params.packed_shift); }

  /// Accumulators of a lane are neighbours in a row: place_of_column() of transpose_values.cuh.
  static constexpr bool kNeighbours = Config::kRawStages > 0;
  static constexpr int kOne = 1 << static_cast<int>(Range::kShift);  // probability at the maximum, rounded

  /// Whether results are stored as f32, from registers.
  __device__ __forceinline__ bool stores_f32() const { return params.splits > 1 || (Config::k8Bit && params.f32_out); }

  /// The factor that turns accumulators of a row into its result. With splits, the combining kernel adds
  /// the sink. `top` cancels the rounding to kOne, so that a single key has the weight 1 in f32 too.
  __device__ __forceinline__ float normaliser(const WorkTile& work, int r, float sum, float base, float top) const {
    const float one = Config::k8Bit ? descale(params.v_scale, work, params.heads_per_kv) * (top / kOne) : 1;
    if (params.sink != nullptr && params.splits == 1) {
      const float sink = exp2f(fmaf(params.sink[place(work, r).head], kLog2e, -base));
      return sum == 0 ? 0 : one / (sum + sink);
    }
    return sum == 0 ? 0 : Config::k8Bit ? one / sum : __fdividef(1, sum);
  }

  /// Stores lse, in the first two lanes of each four. `value`: in base 2.
  __device__ __forceinline__ void store_lse(const WorkTile& work, int r, float value) const {
    const RowPlace at = place(work, r);
    float* lse = params.splits > 1 ? params.partial_lse : params.lse;
    if (lse == nullptr || lane_index() % 4 > 1 || at.token >= work.seq_q) return;
    lse[params.splits > 1 ? partial_row(work, at) : work.offset(params.lse_strides, at)] = value * kLn2;
  }
  /// Number of the row among all partial results. Ragged batches have none.
  __device__ std::int64_t partial_row(const WorkTile& work, RowPlace at) const {
    return (work.split * params.rows + std::int64_t{work.batch} * params.seq_q + at.token) * params.heads + at.head;
  }

  /// First column of a row of 16-bit results.
  template <class Result>
  __device__ __forceinline__ Result* row_of_results(const WorkTile& work, RowPlace at) const {
    return static_cast<Result*>(const_cast<void*>(params.out.data)) + work.offset(params.out.strides, at);
  }
  template <class Result>
  __device__ __forceinline__ void store_16_bit(const WorkTile& work, const float (&out)[kOut], const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace at = place(work, r);
      const int columns = at.token < work.seq_q ? params.head_dim_v : 0;
      store_row_16_bit<Result, kNeighbours>(row_of_results<Result>(work, at), out, r, factor[r], lane_index() % 4, columns);
    }
  }

  /// Stores the warpgroup's rows by TMA, through the slot of its queries, which return_staged() returns. Returns whether `vote` is true in
  /// any warp.
  __device__ __forceinline__ bool store_staged(const WorkTile& work, WorkSlots slots, const float (&out)[kOut], const float (&factor)[2],
                                               bool vote) const {
    const std::uint32_t at = shared_address(storage.q[slots.queries]);
    named_sync(kWarpgroup + warpgroup, 128);  // the MMAs of all warps have read the queries
    stage_rows<typename Config::Result, Config::kHeadDimV>(out, factor, {at, Config::kQuerySliceBytes});
    fence_shared_for_async();
    const bool voted = named_any(kWarpgroup + warpgroup, 128, vote);
    if (!is_first()) return voted;
    const int tokens = kWarpgroupRows >> params.packed_shift, token = work.token + part * tokens;
    const int valid = min(tokens, work.seq_q - token);
    store_clipped<Config::kSlicesV>(at, Config::kQuerySliceBytes, params.out, {work.batch, work.head, work.q_begin + token, valid});
    return voted;
  }
  /// Waits until the rows are in global memory: those that are computed again are stored behind them.
  __device__ __noinline__ void await_stores() const {
    if (is_first()) tma_store_wait();
    named_sync(kWarpgroup + warpgroup, 128);
  }

  /// lanes_not_finite(). Sums of e4m3 values are below 2^50, so two of them share a multiply-add.
  static __device__ __forceinline__ unsigned not_finite(const float (&out)[kOut], int r) {
    if constexpr (Config::kRawStages == 0) return lanes_not_finite(out, r);
    float sum = 0;
#pragma unroll
    for (int i = 2 * r; i < kOut; i += 4) sum = fmaf(out[i], out[i + 1], sum);
    return __ballot_sync(~0u, !(fabsf(sum) < INFINITY));
  }

  /// Destination of f32 results, and the offset of a row in it.
  __device__ float* f32_base() const {
    return !Config::k8Bit || params.splits > 1 ? params.partial_out : static_cast<float*>(const_cast<void*>(params.out.data));
  }
  __device__ std::int64_t f32_offset(const WorkTile& work, RowPlace at) const {
    if (!Config::k8Bit || params.splits > 1) return partial_row(work, at) * params.head_dim_v;
    return work.offset(params.out.strides, at);
  }

  __device__ __forceinline__ void store_f32(const WorkTile& work, const float (&out)[kOut], const float (&factor)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace at = place(work, r);
      if (at.token >= work.seq_q) continue;
      float* to = f32_base() + f32_offset(work, at);
      if constexpr (kNeighbours) {
        store_row_of_neighbours(to, out, r, factor[r], lane_index() % 4, params.head_dim_v);
      } else {
        const int lane_at = lane_column(lane_index());
        store_row(to + lane_at, out, r, factor[r], lane_at, params.head_dim_v);
      }
    }
  }

  /// Overwrites rows of this warp that are not finite.
  __device__ __noinline__ void recompute_rows(const WorkTile& work, RowPair rows, ScoreScale scale) {
    for_rows_not_finite(rows, [&](int i, int, float weight) {
      const int row = part * kWarpgroupRows + thread_index() % 128 / 32 * 16 + i;
      const RowPlace at = work.place(row, params.packed_shift);
      if (at.token >= work.seq_q) return;
      const ExactRow<Config> exact{params, work, at, Config::kKeyTile};
      float columns[exact.kColumns];
      exact(scale, columns);
#pragma unroll
      for (int c = 0; c < exact.kColumns; ++c) {
        const int column = c * 32 + lane_index();
        if (column < params.head_dim_v) store_one(work, at, column, weight == 0 ? 0 : columns[c] * weight);
      }
    });
  }
  __device__ void store_one(const WorkTile& work, RowPlace at, int column, float x) const {
    if (stores_f32()) {
      f32_base()[f32_offset(work, at) + column] = x;
    } else {
      from_f32(x, row_of_results<typename Config::Result>(work, at)[column]);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int part;  // number of this warpgroup's 64 rows in the query tile
};

}  // namespace fovea::gpu::sm90::dense
