// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. Each takes every fourth stage: products of its keys with the heads of all queries, max(0, .), and the weighted sums
/// over heads.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/gemm.cuh"
#include "gpu/cuda/sm90/index_logits/decode/scheduler.cuh"
#include "gpu/cuda/sm90/index_logits/decode/storage.cuh"
#include "gpu/cuda/sm90/index_logits/logits.cuh"

namespace fovea::gpu::sm90::indexer::decode {

template <class Config>
class Math {
 public:
  __device__ __forceinline__ Math(Storage<Config>& storage_, const Params& params_, int warpgroup_)
      : storage(storage_),
        params(params_),
        warpgroup(warpgroup_),
        lane(lane_index()),
        key_of_lane(uniform(static_cast<int>(threadIdx.x) / 32 % 4) * 16 + lane % 2 * 8 + lane / 4) {
    k_at.stage = warpgroup_;
  }

  __device__ __forceinline__ void run() {
    for (int passed = 0;; q_at.advance()) {
      barrier_wait(shared_address(&storage.q_full[q_at.stage]), q_at.parity);
      const SequencePart part = storage.sequences[q_at.stage];
      const int from = uniform(part.from), to = uniform(part.to), own = from + turns_until<kWarpgroups>(passed, warpgroup);
      if (from >= to) return;
      if (own < to) score(part, own, to);
      release(storage.q_empty[q_at.stage]);
      passed += to - from;
    }
  }

 private:
  static constexpr int kWarpgroups = Config::kWarpgroups;
  static constexpr int kHeadTiles = Config::kHeads / 8, kQueries = Config::kQueries, kWeights = kQueries * kHeadTiles;
  static_assert(kQueries <= 2, "a lane stores one logit");

  __device__ __forceinline__ void release(std::uint64_t& empty) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }

  /// Own stages, up to `to`. A lane stores logits of one query: of its key of each stage.
  __device__ __forceinline__ void score(const SequencePart& part, int stage, int to) {
    load_weights();
    const int query = kQueries == 1 ? 0 : lane / 2 % 2;
    const int seen = min(part.length - (kQueries - 1 - query), params.room);  // an earlier query sees fewer keys
    const bool stores = kQueries == 2 || lane / 2 % 2 == 0;
    const int end = !stores ? 0 : params.shape.keep_outside ? seen : static_cast<int>(params.shape.columns);
    const std::int64_t first = (part.row + query) * params.shape.out_row;
#pragma unroll 1
    for (; stage < to; stage += kWarpgroups) {
      const float logit = logit_of_lane();
      const int column = stage * Config::kKeys + key_of_lane;
      if (column < end) store_logit_at(params, first + column, column < seen ? logit : -INFINITY);
    }
  }

  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      const float* const own = &storage.weights[q_at.stage][i * 8 + lane % 4 * 2];
      const int head = i * 8 % Config::kHeads + lane % 4 * 2, heads = static_cast<int>(params.shape.heads);
      weights[i] = {head < heads ? -own[0] : 0.0f, head + 1 < heads ? -own[1] : 0.0f};
    }
  }

  __device__ __forceinline__ float logit_of_lane() {
    barrier_wait(shared_address(&storage.k_full[k_at.stage]), k_at.parity);
    multiply();
    const float scale = storage.scales[k_at.stage][key_of_lane];
    wgmma_wait<0>();
    release(storage.k_empty[k_at.stage]);
    fence_operand(products);  // read behind the wait
    advance<kWarpgroups>(k_at);
    float of_query[kQueries];
#pragma unroll
    for (int query = 0; query < kQueries; ++query) of_query[query] = sum(query);
    if constexpr (kQueries == 2) return exchanged<2>(lane, of_query[0], of_query[1]) * scale;
    return (of_query[0] + __shfl_xor_sync(~0u, of_query[0], 2)) * scale;
  }

  __device__ __forceinline__ void multiply() {
    const SlicedTile keys{shared_address(storage.k[k_at.stage]), Config::kKeyBytes};
    const SlicedTile heads{shared_address(storage.q[q_at.stage]), Config::kQueryBytes};
    gemm_ss<__nv_fp8_e4m3, kDim, Config::kColumns>(products, keys, heads);
  }

  /// Over the heads of two lanes, of one of the lane's two keys. max(0, x) w is min(-x, 0) (-w). NaN stays.
  __device__ __forceinline__ float sum(int query) const {
    float sums[2][2] = {};  // two chains of additions for each key
#pragma unroll
    for (int i = 0; i < kHeadTiles; ++i) {
      const float2 weight = weights[query * kHeadTiles + i];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        sums[e / 2][e % 2] += Warp::min_or_nan(-products[4 * (query * kHeadTiles + i) + e], 0.0f) * (e % 2 == 0 ? weight.x : weight.y);
      }
    }
    return exchanged<1>(lane, sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]);
  }

  Storage<Config>& storage;
  const Params& params;
  const int warpgroup, lane, key_of_lane;  ///< within a stage: the key of the logits that the lane stores
  PipelineState<Config::kQueryStages> q_at;
  PipelineState<Config::kKeyStages> k_at;  ///< the warpgroup's own stages
  float products[Config::kColumns / 2];
  float2 weights[kWeights];  ///< of the lane's columns, negative
};

}  // namespace fovea::gpu::sm90::indexer::decode
