// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. Each keeps 128 keys as operands in registers, and takes one query after the other: products with its heads,
/// max(0, .), and the weighted sum over heads.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/index_logits/logits.cuh"
#include "gpu/cuda/sm90/index_logits/storage.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::indexer {

template <class Config>
class Math {
 public:
  __device__ Math(Storage<Config>& storage_, const Params& params_, int warpgroup_)
      : storage(storage_),
        params(params_),
        warpgroup(warpgroup_),
        warp(uniform(static_cast<int>(threadIdx.x) / 32 % 4)),
        lane(lane_index()) {}

  __device__ __forceinline__ void run() {
    PipelineState<Config::kKeyStages> tile_at;
    while (true) {
      barrier_wait(shared_address(&storage.k_full[tile_at.stage]), tile_at.parity);
      const KeyTile tile = storage.tiles[tile_at.stage];
      if (tile.rows == 0) return;
      scale = load_scale(tile, tile.first_key + key_of_lane());
      load_keys(shared_address(storage.k[tile_at.stage]));
      release(storage.k_empty[tile_at.stage]);
      tile_at.advance();
      score(tile);
    }
  }

 private:
  static constexpr int kMmas = Config::kMmas, kSteps = kDim / 32, kHeadTiles = Config::kHeads / 8;
  static_assert(kMmas == 2, "a lane stores one of the four keys that its quad has sums of");

  __device__ __forceinline__ void release(std::uint64_t& empty) {
    __syncwarp();
    if (lane == 0) barrier_arrive(shared_address(&empty));
  }

  __device__ __forceinline__ void load_keys(std::uint32_t tile) {
    const MatrixPlace place = a_operand_place(lane);
#pragma unroll
    for (int i = 0; i < kMmas; ++i) {
      const int row = (warpgroup * kMmas + i) * kMmaRows + warp * 16 + place.row;
#pragma unroll
      for (int step = 0; step < kSteps; ++step) ldmatrix(keys[i][step], tile + row * kDim + ((2 * step + place.chunk) ^ (row % 8)) * 16);
    }
  }

  __device__ __forceinline__ int key_of_lane() const {
    return (warpgroup * kMmas + lane % 4 / 2) * kMmaRows + warp * 16 + lane % 2 * 8 + lane / 4;
  }

  /// NaN for a block that the cache does not have.
  __device__ __forceinline__ float load_scale(const KeyTile& tile, int column) const {
    const detail::IndexLogitsShape& shape = params.shape;
    const int2 place = column < shape.columns ? place_of(params, tile.first_row, column) : int2{-1, 0};
    if (place.x < 0) return NAN;
    return params.args.k_scale[shape.paged ? place.x * shape.scale_block + place.y * shape.scale_token : place.y * shape.scale_block];
  }

  /// All queries that see keys of the tile.
  __device__ __forceinline__ void score(const KeyTile& tile) {
    const int heads = static_cast<int>(params.shape.heads);
    unsigned rows = tile.rows;
    int first_head = 0, steps = __popc(rows) * ((heads + Config::kHeads - 1) / Config::kHeads);
    clear();
    wait_for_query();
    multiply<0>(at.stage);
    finish<0>();
    // Products with the first keys are complete here, and at its end. ptxas lets none be in flight where a loop begins again.
    const auto take = [&](auto more) __attribute__((always_inline)) {
      const int stage = at.stage;
      at.advance();
#pragma unroll
      for (int i = 0; i < kHeadTiles; ++i) weights[i] = *reinterpret_cast<const float2*>(&storage.weights[stage][i * 8 + lane % 4 * 2]);
      multiply<1>(stage);
      add<0>();
      finish<1>();
      if constexpr (more.value) {
        wait_for_query();
        multiply<0>(at.stage);
      }
      add<1>();
      first_head += Config::kHeads;
      if (first_head >= heads) {
        store(tile, tile.first_row + __ffs(static_cast<int>(rows)) - 1, storage.seen[stage]);
        clear();
        rows &= rows - 1;
        first_head = 0;
      }
      release(storage.q_empty[stage]);
      if constexpr (more.value) finish<0>();
    };
    for (; steps > 1; --steps) take(std::true_type{});
    take(std::false_type{});
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& of_mma : sums) of_mma[0] = of_mma[1] = 0.0f;
  }
  __device__ __forceinline__ void wait_for_query() { barrier_wait(shared_address(&storage.q_full[at.stage]), at.parity); }

  template <int kMma>
  __device__ __forceinline__ void multiply(int stage) {
    const std::uint64_t b = smem_descriptor(shared_address(storage.q[stage]), 16, kGroupBytes);
    fence_operand(products[kMma]);
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Wgmma<__nv_fp8_e4m3, Config::kHeads>::template rs<Major::k>(products[kMma], keys[kMma][step], advance_descriptor(b, step * 32),
                                                                  step > 0);
    }
    wgmma_commit();
  }
  template <int kMma>
  __device__ __forceinline__ void finish() {
    wgmma_wait<0>();
    fence_operand(products[kMma]);
  }

  /// max(0, x) w is min(-x, 0) (-w). NaN stays.
  template <int kMma>
  __device__ __forceinline__ void add() {
    float odd[2] = {};  // two chains of additions for each row
#pragma unroll
    for (int tile = 0; tile < kHeadTiles; ++tile) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& sum = e % 2 == 0 ? sums[kMma][e / 2] : odd[e / 2];
        sum += Warp::min_or_nan(-products[kMma][4 * tile + e], 0.0f) * (e % 2 == 0 ? weights[tile].x : weights[tile].y);
      }
    }
    sums[kMma][0] += odd[0];
    sums[kMma][1] += odd[1];
  }

  __device__ __forceinline__ void store(const KeyTile& tile, int row, int2 seen) {
    const auto exchanged = [](bool second, float a, float b, int distance) {  // one's own, and the other lane's of the same key
      return (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, distance);
    };
    const float lower = exchanged(lane % 2 != 0, sums[0][0], sums[0][1], 1), upper = exchanged(lane % 2 != 0, sums[1][0], sums[1][1], 1);
    const float sum = exchanged(lane % 4 >= 2, lower, upper, 2);
    const int key = key_of_lane(), column = tile.first_key + key;
    const bool is_seen = key >= seen.x && key < seen.y;
    if (is_seen || (column < params.shape.columns && !params.shape.keep_outside)) {
      store_logit(params, row, column, is_seen ? sum * scale : -INFINITY);
    }
  }

  Storage<Config>& storage;
  const Params& params;
  const int warpgroup, warp, lane;
  PipelineState<Config::kQueryStages> at;
  std::uint32_t keys[kMmas][kSteps][4];
  float scale;  ///< of the key whose logits the lane stores
  float products[kMmas][Config::kHeads / 2], sums[kMmas][2];
  float2 weights[kHeadTiles];  ///< of the lane's columns, negative
};

}  // namespace fovea::gpu::sm90::indexer
