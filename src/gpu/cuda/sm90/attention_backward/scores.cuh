// SPDX-License-Identifier: Apache-2.0
/// A score warpgroup: 64 keys, whose dK and dV stay in its registers. Rows of accumulators are keys,
/// columns are queries or channels.
#pragma once

#include "gpu/cuda/common/gradient/query_bits.cuh"
#include "gpu/cuda/sm90/attention_backward/alibi/bias.cuh"
#include "gpu/cuda/sm90/attention_backward/dq.cuh"
#include "gpu/cuda/sm90/attention_backward/score_math.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/gemm.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// lse or delta of each column's query, where columns are queries.
struct ColumnStats {
  const float* of;  // from the lane's first column on
  __device__ __forceinline__ explicit ColumnStats(const float (&of_tile)[kQueryTile]) : of(of_tile + lane_column(lane_index())) {}
  __device__ __forceinline__ float2 operator()(int i) const { return *reinterpret_cast<const float2*>(of + column_of(i)); }
};

/// Zeroes pairs outside the band [low, high], where rows are 64 keys and columns are queries.
/// `first_difference`: of the first key and the first query.
__device__ __forceinline__ void mask_keys(float (&scores)[kQueryTile / 2], int first_difference, int low, int high) {
  if (!((first_difference - (kQueryTile - 1) < low) | (first_difference + 63 > high))) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int difference = first_difference + lane_row() + 8 * r - lane_column(lane_index());
    keep_columns(scores, r, difference - high, difference - low);
  }
}

struct NoBits {};

template <class Config>
class Scores {
 public:
  using Params = typename Config::Params;

  __device__ Scores(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_), dq_of_scores(params_, storage_, warpgroup_) {}

  __device__ __forceinline__ void operator()(int ticket) {
    clear(dk);
    clear(dv);
    barrier_wait(shared_address(&storage.kv_full), 0);
    const detail::GradientOrder order = order_of(params, storage.tile.sequence, Config::kKeyTile);
    low = order.low;
    high = order.high;
    if constexpr (dense::kAlibi<Config>) bias.begin(params, storage.tile, warpgroup * 64 + thread_index() % 128 / 32 * 16, high);
    const int count = storage.step_count;
    if constexpr (kAhead) {
      if (count > 0) steps_ahead(count);
    } else {
      steps_in_turn(count);
    }
    store(ticket);
  }

 private:
  using Element = typename Config::Element;
  // kAhead: S of the next step is issued behind dK. kBoth: dP too, beside S. Larger head dims leave
  // too few registers.
  static constexpr bool kAhead = Config::kHeadDimQk <= 96 && !Config::kLists, kBoth = Config::kHeadDimQk <= 64 && kAhead;
  static constexpr int kScores = kQueryTile / 2, kDk = Config::kHeadDimQk / 2, kDv = Config::kHeadDimV / 2;  // accumulators of a lane
  static constexpr int kKeysBytes = 64 * kSliceBytes;  // the warpgroup's keys in a slice

  /// All steps, one after the other.
  __device__ __forceinline__ void steps_in_turn(int count) {
    for (int i = 0; i < count; ++i) {
      if constexpr (Config::kLists) {
        if (passes(i)) continue;
      }
      begin(i);
      wgmma_wait<0>();
      fence_operand(scores);
      weigh(i);
      differentiate(i);
      wgmma_wait<0>();
      fence_operand(dv);
      fence_operand(dk);
      release(ring.stage);
      ring.advance();
      if constexpr (Config::kDqInScoreWarpgroups) dq_of_scores(i, storage.steps[i % Storage<Config>::kSteps]);
    }
  }
  /// All steps, at least one. MMAs of the next step are issued behind this step's dK.
  __device__ __forceinline__ void steps_ahead(int count) {
    begin(0);
    wgmma_wait<0>();
    fence_operand(scores);
    if constexpr (kBoth) {
      fence_operand(dp);
      weigh(0);
    }
    for (int i = 0;; ++i) {
      if constexpr (!kBoth) weigh(i);
      differentiate(i);
      const int stage = ring.stage;
      ring.advance();
      if (i + 1 == count) break;
      if constexpr (!kBoth) {  // dV is complete, and P's registers are free
        wgmma_wait<1>();
        fence_operand(dv);
      }
      begin(i + 1);
      wgmma_wait<kBoth ? 1 : 0>();
      fence_operand(dv);
      fence_operand(dk);
      fence_operand(scores);
      release(stage);
      if constexpr (kBoth) {
        weigh(i + 1);
        wgmma_wait<0>();
        fence_operand(dp);
      }
    }
    wgmma_wait<0>();
    fence_operand(dv);
    fence_operand(dk);
  }

  /// Whether the step does not list the warpgroup's keys. Then it is over: the dQ warpgroup reads the other one's dS alone.
  __device__ __forceinline__ bool passes(int index) {
    barrier_wait(shared_address(&storage.q_full[ring.stage]), ring.parity);
    if ((uniform(storage.steps[index % Storage<Config>::kSteps].listed) >> warpgroup & 1) != 0) return false;
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.ds_full[ring.stage]));
    release(ring.stage);
    ring.advance();
    return true;
  }

  /// Issues S of the stage, with ALiBi, and dP with kBoth. Loads the bits of a partial block beside them.
  __device__ __forceinline__ void begin([[maybe_unused]] int index) {
    barrier_wait(shared_address(&storage.q_full[ring.stage]), ring.parity);
    const SlicedTile q = queries_of(storage.q[ring.stage]);
    if constexpr (dense::kAlibi<Config>) {
      dense::issue_product<Element, Config::kHeadDimQk, kQueryTile>(scores, keys_of(storage.k), q);
      const auto& operand = bias.operand_of(storage.steps[index % Storage<Config>::kSteps]);
      wgmma_fence();
      dense::issue_numbers<Element, kQueryTile>(scores, operand, storage.query_numbers.descriptor());
    } else {
      gemm_ss<Element, Config::kHeadDimQk, kQueryTile>(scores, keys_of(storage.k), q);
    }
    if constexpr (kBoth) {
      barrier_wait(shared_address(&storage.dout_full[ring.stage]), ring.parity);
      gemm_ss<Element, Config::kHeadDimV, kQueryTile>(dp, keys_of(storage.v), queries_of(storage.dout[ring.stage]));
    }
    if constexpr (Config::kLists) {
      const ListedTileStep& step = storage.steps[index % Storage<Config>::kSteps];
      bits.load(step.bits[warpgroup], params.lists.of.block_k / 32, thread_index() % 128 / 32 * 16, lane_index);
    }
  }

  /// P from S.
  __device__ __forceinline__ void weigh(int index) {
    const RowStats& stats = storage.stats[ring.stage];
    if constexpr (dense::kAlibi<Config>) bias.complete(storage.steps[index % Storage<Config>::kSteps], scores);
    exponentiate<Config::kSoftcap>(params, uniform(stats.natural) != 0, scores, ColumnStats(stats.minus_lse), [&](int i, Weight weight) {
      scores[i] = weight.p;
      if constexpr (Config::kSoftcap) slope[i] = weight.slope;
    });
    const int query = uniform(storage.steps[index % Storage<Config>::kSteps].query_tile) * kQueryTile;
    mask_keys(scores, storage.tile.begin + warpgroup * 64 - query, low, high);
    if constexpr (Config::kLists) bits.keep(0, lane_index, [&](int i) { scores[i] = 0; });
    round_to<Element>(p, scores);
    if constexpr (Config::kSoftcap) round_to<Element>(ds, scores, slope);
  }

  /// Issues dV and dK, and dP unless kBoth.
  __device__ __forceinline__ void differentiate(int index) {
    const RowStats& stats = storage.stats[ring.stage];
    const SlicedTile q = queries_of(storage.q[ring.stage]), dout = queries_of(storage.dout[ring.stage]);
    if constexpr (!kBoth) {
      barrier_wait(shared_address(&storage.dout_full[ring.stage]), ring.parity);
      gemm_ss<Element, Config::kHeadDimV, kQueryTile>(scores, keys_of(storage.v), dout);
    }
    gemm_rs<Element, kQueryTile, Config::kHeadDimV>(dv, p, dout);
    if constexpr (kBoth) {
      differentiate_scores<Element>(ds, Config::kSoftcap ? ds : p, dp, ColumnStats(stats.delta));
    } else {
      wgmma_wait<1>();
      fence_operand(scores);
      differentiate_scores<Element>(ds, Config::kSoftcap ? ds : p, scores, ColumnStats(stats.delta));
    }
    store_scores(index);
    gemm_rs<Element, kQueryTile, Config::kHeadDimQk>(dk, ds, q);
  }

  __device__ __forceinline__ void release(int stage) {
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.empty[stage]));
  }

  __device__ __forceinline__ SlicedTile keys_of(const std::byte* tile) const {
    return {shared_address(tile) + warpgroup * kKeysBytes, Config::kKeySliceBytes};
  }
  static __device__ __forceinline__ SlicedTile queries_of(const std::byte* tile) {
    return {shared_address(tile), Config::kQuerySliceBytes};
  }

  __device__ __forceinline__ void store_scores(int index) {
    const int stage = Config::kDqInScoreWarpgroups ? 0 : ring.stage;
    const std::uint32_t parity = Config::kDqInScoreWarpgroups ? index % 2 : ring.parity;
    const std::uint32_t warp_rows =
        shared_address(storage.ds[stage]) + warpgroup * kKeysBytes + thread_index() % 128 / 32 * 16 * kSliceBytes;
    barrier_wait(shared_address(&storage.ds_empty[stage]), parity ^ 1);
    store_swizzled<kQueryTile>(warp_rows, Config::kScoreBytes, lane_index(), ds);
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.ds_full[stage]));
  }

  // ---- results ------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void store(int ticket) {
    if (params.leaks && (not_finite(dk) || not_finite(dv))) params.dkv_not_finite[ticket] = 1;
    if constexpr (Config::kDqInScoreWarpgroups) dq_of_scores.end();
    named_sync(kDone, 128 * (Config::kScoreWarpgroups + (Config::kDqWarpgroup ? 1 : 0)));
    stage_rows<Element, Config::kHeadDimV>(dv, {1, 1}, keys_of(storage.v));
    stage_rows<Element, Config::kHeadDimQk>(dk, {params.scale, params.scale}, keys_of(storage.k));
    fence_shared_for_async();
    named_sync(kWarpgroup + warpgroup, 128);
    if (thread_index() % 128 != 0) return;
    const KeyTile& tile = storage.tile;
    const int token = tile.begin + warpgroup * 64;
    const TilePlace at{tile.sequence.batch, tile.kv_head, tile.sequence.k_begin + token, min(64, tile.sequence.seq_k - token)};
    store_clipped<Config::kSlicesV>(shared_address(storage.v) + warpgroup * kKeysBytes, Config::kKeySliceBytes, params.dv, at);
    store_clipped<Config::kSlicesQk>(shared_address(storage.k) + warpgroup * kKeysBytes, Config::kKeySliceBytes, params.dk, at);
    tma_store_wait_read();
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int low = 0, high = 0;  // the band
  std::conditional_t<Config::kDqInScoreWarpgroups, ScoreWarpgroupDq<Config>, NoDq> dq_of_scores;
  PipelineState<Config::kStages> ring;
  float scores[kScores], dp[kBoth ? kScores : 1], dk[kDk], dv[kDv];
  std::uint32_t p[kScores / 2], ds[kScores / 2];
  float slope[Config::kSoftcap ? kScores : 1];
  std::conditional_t<Config::kLists, QueryBits<kQueryTile>, NoBits> bits;
  [[no_unique_address]] std::conditional_t<dense::kAlibi<Config>, StepBias<Config>, NoStepBias> bias;
};

}  // namespace fovea::gpu::sm90::attention_backward
