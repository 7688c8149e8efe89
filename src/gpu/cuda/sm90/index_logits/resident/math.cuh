// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. Each takes 64 keys of a stage against a bank of the resident queries: products with their heads, max(0, .), and
/// the weighted sum over heads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/index_logits/logits.cuh"
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
        lane(lane_index()),
        shared(shared_address(&storage_)) {
    asm volatile("" : "+r"(shared));  // or the compiler reads it from a special register in each stage
  }

  __device__ __forceinline__ void run() {
    while (true) {
      barrier_wait(shared_address(&storage.q_full[q_at.stage]), q_at.parity);
      tile = storage.tiles[q_at.stage];
      if (tile.stages == 0) return;
      load_weights();
      score();
      release(shared_address(&storage.q_empty[q_at.stage]));
      q_at.advance();
    }
  }

 private:
  using Shared = Storage<Config>;
  static constexpr int kHeadTiles = Config::kHeads / 8, kQueries = Config::kQueriesOfBank, kWeights = kQueries * kHeadTiles;
  static_assert(kQueries % 2 == 0, "a lane stores the logits of every other query of a bank");

  __device__ __forceinline__ void release(std::uint32_t empty) {
    __syncwarp();
    if (lane == 0) barrier_arrive(empty);
  }
  __device__ __forceinline__ void load_weights() {
#pragma unroll
    for (int i = 0; i < kWeights; ++i) {
      weights[i] = *reinterpret_cast<const float2*>(&storage.weights[q_at.stage][bank * Config::kColumns + i * 8 + lane % 4 * 2]);
    }
  }

  /// All stages of a tile. The sums of a warpgroup run beside the MMAs of the others.
  __device__ __forceinline__ void score() {
    first_key = tile.first_key;
    out = (tile.first_row + first_query()) * params.shape.out_row + first_key + key_of_lane();
    const int column = (q_at.stage * Config::kBanks + bank) * Config::kColumns;
    const std::uint64_t b = smem_descriptor(shared + static_cast<std::uint32_t>(offsetof(Shared, q)) + column * kDim, 16, kGroupBytes);
    for (int left = tile.stages; left > 0; --left, first_key += Config::kKeys, out += Config::kKeys) {
      const std::uint32_t full = shared + static_cast<std::uint32_t>(offsetof(Shared, k_full) + k_at.stage * sizeof(std::uint64_t));
      barrier_wait(full, k_at.parity);
      multiply(b);
      const float scale = scale_of_key();
      wgmma_wait<0>();
      fence_operand(products);
      release(full + static_cast<std::uint32_t>(offsetof(Shared, k_empty) - offsetof(Shared, k_full)));
      k_at.advance();
      add(scale);
    }
  }

  __device__ __forceinline__ void multiply(std::uint64_t b) {
    const int key = k_at.stage * Config::kKeys + first_row;
    const std::uint64_t a = smem_descriptor(shared + static_cast<std::uint32_t>(offsetof(Shared, k)) + key * kDim, 16, kGroupBytes);
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
  /// The first of every other query whose logits the lane stores, within a tile.
  __device__ __forceinline__ int first_query() const { return bank * kQueries + lane / 2 % 2; }

  __device__ __forceinline__ float scale_of_key() const {
    const int key = k_at.stage * Config::kKeys + key_of_lane();
    float scale;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(shared + static_cast<std::uint32_t>(offsetof(Shared, scales)) + key * 4));
    return scale;
  }

  /// max(0, x) w is min(-x, 0) (-w). NaN stays.
  __device__ __forceinline__ void add(float scale) {
    float of_query[kQueries];
#pragma unroll
    for (int query = 0; query < kQueries; ++query) {
      float sums[2] = {};  // of each row of the lane
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) {
        const float2 weight = weights[query * kHeadTiles + i];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float product = products[4 * (query * kHeadTiles + i) + e];
          sums[e / 2] += Warp::min_or_nan(-product, 0.0f) * -(e % 2 == 0 ? weight.x : weight.y);
        }
      }
      of_query[query] = exchanged<1>(lane, sums[0], sums[1]);
    }
    const bool whole = first_key >= tile.whole.x && first_key + Config::kKeys <= tile.whole.y;
#pragma unroll
    for (int query = 0; query < kQueries; query += 2) {
      const float logit = exchanged<2>(lane, of_query[query], of_query[query + 1]) * scale;
      if (whole) {
        store(query, logit);
      } else {
        store_if_seen(query, logit);
      }
    }
  }
  /// `query`: behind first_query().
  __device__ __forceinline__ void store(int query, float logit) { store_logit_at(params, out + query * params.shape.out_row, logit); }
  __device__ __forceinline__ void store_if_seen(int query, float logit) {
    const int of_tile = first_query() + query, column = first_key + key_of_lane();
    const int2 seen = storage.seen[q_at.stage][of_tile];
    const bool is_seen = column >= seen.x && column < seen.y;
    if (is_seen || (!params.shape.keep_outside && of_tile < tile.rows && column < static_cast<int>(params.shape.columns))) {
      store(query, is_seen ? logit : -INFINITY);
    }
  }

  Storage<Config>& storage;
  const Params& params;
  const int first_row, bank;  ///< of the warpgroup's keys in a stage; of its queries
  const int warp, lane;
  std::uint32_t shared;  ///< address of the storage
  PipelineState<Config::kQueryStages> q_at;
  PipelineState<Config::kKeyStages> k_at;
  QueryTile tile;
  int first_key;     ///< of the stage
  std::int64_t out;  ///< place of the lane's first logit of the stage
  float products[Config::kColumns / 2];
  float2 weights[kWeights];  ///< of the lane's columns
};

}  // namespace fovea::gpu::sm90::indexer::resident
