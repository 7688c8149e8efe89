// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. Each takes 64 keys of a stage against a bank of the resident queries: products with their heads, max(0, .), and
/// the weighted sum over heads.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/index_logits/load.cuh"
#include "gpu/cuda/sm90/index_logits/resident/storage.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::indexer::resident {

template <class Config>
class Math {
 public:
  __device__ Math(Storage<Config>& storage_, const Params& params_, int warpgroup_)
      : storage(storage_),
        params(params_),
        first_row(warpgroup_ % Config::kKeyGroups * kMmaRows),
        bank(warpgroup_ / Config::kKeyGroups),
        warp(uniform(static_cast<int>(threadIdx.x) / 32 % 4)),
        lane(lane_index()) {}

  __device__ __forceinline__ void run() {
    while (true) {
      barrier_wait(shared_address(&storage.q_full[q_at.stage]), q_at.parity);
      tile = storage.tiles[q_at.stage];
      if (tile.stages == 0) return;
      load_weights();
      score();
      release(storage.q_empty[q_at.stage]);
      q_at.advance();
    }
  }

 private:
  static constexpr int kHeadTiles = Config::kHeads / 8, kQueries = Config::kQueriesOfBank, kWeights = kQueries * kHeadTiles;
  static_assert(kQueries % 2 == 0, "a lane stores the logits of every other query of a bank");

  __device__ __forceinline__ void release(std::uint64_t& empty) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }
  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      weights[i] = *reinterpret_cast<const float2*>(&storage.weights[q_at.stage][bank * Config::kColumns + i * 8 + lane % 4 * 2]);
    }
  }
  __device__ __forceinline__ void wait_for_keys() { barrier_wait(shared_address(&storage.k_full[k_at.stage]), k_at.parity); }

  /// All stages of a tile. The sums of a warpgroup run beside the MMAs of the others.
  __device__ __forceinline__ void score() {
    first_key = tile.first_key;
    for (int left = tile.stages; left > 0; --left, first_key += Config::kKeys) {
      wait_for_keys();
      multiply();
      scale = storage.scales[k_at.stage][key_of_lane()];
      wgmma_wait<0>();
      fence_operand(products);
      release(storage.k_empty[k_at.stage]);
      k_at.advance();
      add();
    }
  }

  __device__ __forceinline__ void multiply() {
    const std::uint64_t a = smem_descriptor(shared_address(storage.k[k_at.stage]) + first_row * kDim, 16, kGroupBytes);
    const std::uint64_t b = smem_descriptor(shared_address(storage.q[q_at.stage]) + bank * Config::kColumns * kDim, 16, kGroupBytes);
    fence_operand(products);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kDim / 32; ++step) {
      Wgmma<__nv_fp8_e4m3, Config::kColumns>::template ss<Major::k>(products, advance_descriptor(a, step * 32),
                                                                    advance_descriptor(b, step * 32), step > 0);
    }
    wgmma_commit();
  }

  /// Within a stage.
  __device__ __forceinline__ int key_of_lane() const { return first_row + warp * 16 + lane % 2 * 8 + lane / 4; }

  /// max(0, x) w is min(-x, 0) (-w). NaN stays.
  __device__ __forceinline__ void add() {
    float of_query[kQueries];
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
      float sums[2][2] = {};  // of each row of the lane, two chains
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        const float2 weight = weights[query * kHeadTiles + i];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = products[4 * (query * kHeadTiles + i) + e];
          sums[e / 2][e % 2] += Warp::min_or_nan(-product, 0.0f) * (e % 2 == 0 ? weight.x : weight.y);
        }
      }
      of_query[query] = exchanged<1>(sums[0][0] + sums[0][1], sums[1][0] + sums[1][1]);
    }
#pragma unroll
    for (int query = 0; query < kQueries; query += 2) {
      store(bank * kQueries + query + lane / 2 % 2, exchanged<2>(of_query[query], of_query[query + 1]));
    }
  }
  /// The sum of a over this lane and the one at a distance if the lane is the first of them, else that of b.
  template <int kDistance>
  __device__ __forceinline__ float exchanged(float a, float b) const {
    const bool second = (lane & kDistance) != 0;
    return (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, kDistance);
  }

  __device__ __forceinline__ void store(int query, float sum) {
    const int column = first_key + key_of_lane();
    const int2 seen = storage.seen[q_at.stage][query];
    const bool is_seen = column >= seen.x && column < seen.y;
    if (is_seen || (!params.shape.keep_outside && query < tile.rows && column < static_cast<int>(params.shape.columns))) {
      store_logit(params, tile.first_row + query, column, is_seen ? sum * scale : -INFINITY);
    }
  }

  Storage<Config>& storage;
  const Params& params;
  const int first_row, bank;  ///< of the warpgroup's keys in a stage; of its queries
  const int warp, lane;
  PipelineState<Config::kQueryStages> q_at;
  PipelineState<Config::kKeyStages> k_at;
  QueryTile tile;
  int first_key;
  float products[Config::kColumns / 2], scale;
  float2 weights[kWeights];  ///< of the lane's columns, negative
};

}  // namespace fovea::gpu::sm90::indexer::resident
