// SPDX-License-Identifier: Apache-2.0
/// dK and dV of 64 keys by two warpgroups, whose registers hold no more. The first computes P and dV, the
/// second dS and dK. P passes through shared memory, as it lies in registers.
/// Rows of accumulators are keys, columns are queries or channels.
#pragma once

#include "gpu/cuda/sm90/attention_backward/scores.cuh"

namespace fovea::gpu::sm90::attention_backward {

template <class Config>
class DkDv {
 public:
  __device__ DkDv(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_) {}

  __device__ __forceinline__ void operator()(int ticket) {
    clear(sum);
    barrier_wait(shared_address(&storage.kv_full), 0);
    const int count = storage.step_count;
    if (warpgroup == 0) {
      const detail::GradientOrder order = order_of(params, storage.tile.sequence, Config::kKeyTile);
      low = order.low;
      high = order.high;
      for (int i = 0; i < count; ++i, ring.advance()) value_step(i);
      store(ticket, 1, storage.k, params.dv);
    } else {
      for (int i = 0; i < count; ++i, ring.advance()) key_step();
      store(ticket, params.scale, storage.v, params.dk);
    }
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kScores = kQueryTile / 2, kHeadDim = Config::kHeadDimQk;

  /// The first warpgroup: S, P, dV += P dO
  __device__ __forceinline__ void value_step(int index) {
    const RowStats& stats = storage.stats[ring.stage];
    barrier_wait(shared_address(&storage.q_full[ring.stage]), ring.parity);
    gemm_ss<Element, kHeadDim, kQueryTile>(scores, keys_of(storage.k), queries_of(storage.q));
    wgmma_wait<0>();
    fence_operand(scores);
    exponentiate<Config::kSoftcap>(params, uniform(stats.natural) != 0, scores, ColumnStats(stats.minus_lse), [&](int i, Weight weight) {
      scores[i] = weight.p;
      if constexpr (Config::kSoftcap) slope[i] = weight.slope;
    });
    const int query = uniform(storage.steps[index % Storage<Config>::kSteps].query_tile) * kQueryTile;
    mask_keys(scores, storage.tile.begin - query, low, high);
    if constexpr (Config::kSoftcap) {
      round_to<Element>(weights, scores, slope);
      hand_over();
    }
    round_to<Element>(weights, scores);
    if constexpr (!Config::kSoftcap) hand_over();
    barrier_wait(shared_address(&storage.dout_full[ring.stage]), ring.parity);
    accumulate_and_release(storage.dout);
  }

  /// The second warpgroup: dP, dS = P (dP - delta), dK += dS Q
  __device__ __forceinline__ void key_step() {
    barrier_wait(shared_address(&storage.dout_full[ring.stage]), ring.parity);
    gemm_ss<Element, kHeadDim, kQueryTile>(scores, keys_of(storage.v), queries_of(storage.dout));
    wgmma_wait<0>();
    fence_operand(scores);
    barrier_wait(shared_address(&storage.q_full[ring.stage]), ring.parity);
    barrier_wait(shared_address(&storage.weights_full[ring.stage]), ring.parity);
    const int thread = thread_index() % 128;
#pragma unroll
    for (int i = 0; i < kScores / 2; i += 4) {
      const uint4 four = storage.weights[ring.stage][i / 4][thread];
      weights[i] = four.x;
      weights[i + 1] = four.y;
      weights[i + 2] = four.z;
      weights[i + 3] = four.w;
    }
    differentiate_scores<Element>(weights, weights, scores, ColumnStats(storage.stats[ring.stage].delta));
    accumulate_and_release(storage.q);
  }

  /// sum += weights queries
  __device__ __forceinline__ void accumulate_and_release(const std::byte (&queries)[Config::kStages][Config::kQueryBytes]) {
    gemm_rs<Element, kQueryTile, kHeadDim>(sum, weights, queries_of(queries));
    wgmma_wait<0>();
    fence_operand(sum);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.empty[ring.stage]));
  }

  __device__ __forceinline__ void hand_over() {
    const int thread = thread_index() % 128;
#pragma unroll
    for (int i = 0; i < kScores / 2; i += 4)
      storage.weights[ring.stage][i / 4][thread] = {weights[i], weights[i + 1], weights[i + 2], weights[i + 3]};
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.weights_full[ring.stage]));
  }

  static __device__ __forceinline__ SlicedTile keys_of(const std::byte* tile) { return {shared_address(tile), Config::kKeySliceBytes}; }
  __device__ __forceinline__ SlicedTile queries_of(const std::byte (&tiles)[Config::kStages][Config::kQueryBytes]) const {
    return {shared_address(tiles[ring.stage]), Config::kQuerySliceBytes};
  }

  /// Stores dK or dV. Results are staged in the tile that this warpgroup alone has read.
  __device__ __forceinline__ void store(int ticket, float factor, const std::byte* by, const ClippedRows& to) {
    if (params.leaks && not_finite(sum)) params.dkv_not_finite[ticket] = 1;
    stage_rows<Element, kHeadDim>(sum, {factor, factor}, keys_of(by));
    fence_shared_for_async();
    named_sync(kWarpgroup + warpgroup, 128);
    if (thread_index() % 128 != 0) return;
    const KeyTile& tile = storage.tile;
    const TilePlace at{tile.sequence.batch, tile.kv_head, tile.sequence.k_begin + tile.begin, min(64, tile.sequence.seq_k - tile.begin)};
    store_clipped<Config::kSlicesQk>(shared_address(by), Config::kKeySliceBytes, to, at);
    tma_store_wait_read();
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int low = 0, high = 0;  // the band
  PipelineState<Config::kStages> ring;
  float scores[kScores], sum[kHeadDim / 2];
  std::uint32_t weights[kScores / 2];
  float slope[Config::kSoftcap ? kScores : 1];
};

}  // namespace fovea::gpu::sm90::attention_backward
