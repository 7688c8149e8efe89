// SPDX-License-Identifier: Apache-2.0
/// The producer's warps: queries with their weights, keys, and scales of keys.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/sm90/index_logits/load.cuh"
#include "gpu/cuda/sm90/index_logits/resident/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::indexer::resident {

/// The warp arrives twice: for its copies and for its stores.
template <class Config>
__device__ void load_queries(Storage<Config>& storage, const Params& params) {
  const int lane = lane_index(), heads = static_cast<int>(params.shape.heads);
  PipelineState<Config::kQueryStages> at;
  const auto publish = [&](const QueryTile& tile, int bytes) {
    const std::uint32_t full = shared_address(&storage.q_full[at.stage]);
    copy_async_arrive(full);
    if (lane != 0) return barrier_arrive(full);
    storage.tiles[at.stage] = tile;
    barrier_arrive_expect_tx(full, bytes);
    if (bytes > 0) tma_load(shared_address(storage.q[at.stage]), &params.q, {0, 0, 0, 0, tile.first_row}, full);
  };
  for (GroupScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
    for (int i = lane; i < Config::kQueries * Config::kHeads; i += 32) {
      const int query = i / Config::kHeads, head = i % Config::kHeads;
      float& weight = storage.weights[at.stage][i];
      if (query < work.group.rows && head < heads) {
        copy_async_word(shared_address(&weight), params.args.weights + (work.group.first_row + query) * params.shape.weights_row + head);
      } else {
        weight = 0.0f;
      }
    }
    if (lane < Config::kQueries) storage.seen[at.stage][lane] = work.seen;
    const int2 whole = work.group.rows == Config::kQueries ? work.every : int2{0, 0};
    publish({work.group.first_row, work.group.rows, work.stages.first_key, work.stages.count, whole}, Config::kQueryBytes);
    at.advance();
  }
  barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
  publish({}, 0);
}

/// Boxes outside of the keys arrive as zeros.
template <class Config>
__device__ void load_keys(Storage<Config>& storage, const Params& params) {
  static_assert(Config::kKeys <= 32 * kLeastBox, "a lane has one box at most");
  const int lane = lane_index(), key = lane * params.box;
  PipelineState<Config::kKeyStages> at;
  for (GroupScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    for (int stage = 0; stage < work.stages.count; ++stage, at.advance()) {
      const int column = work.stages.first_key + stage * Config::kKeys + key;
      const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
      barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
      if (lane == 0) barrier_arrive_expect_tx(full, Config::kKeyBytes);
      __syncwarp();
      if (key < Config::kKeys) tma_load(shared_address(storage.k[at.stage]) + key * kDim, &params.k, {0, column, 0, 0, 0}, full);
    }
  }
}

/// The scales of keys, by copies that do not hold up the warp. It arrives twice, once when they are complete.
template <class Config>
__device__ void load_scales(Storage<Config>& storage, const Params& params) {
  const int lane = lane_index(), columns = static_cast<int>(params.shape.columns);
  PipelineState<Config::kKeyStages> at;
  for (GroupScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    for (int stage = 0; stage < work.stages.count; ++stage, at.advance()) {
      const int first = work.stages.first_key + stage * Config::kKeys;
      barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
#pragma unroll
      for (int key = lane; key < Config::kKeys; key += 32) {
        if (first + key < columns) {
          copy_async_word(shared_address(&storage.scales[at.stage][key]), params.args.k_scale + (first + key) * params.shape.scale_block);
        }
      }
      const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
      copy_async_arrive(full);
      barrier_arrive(full);
    }
  }
}

}  // namespace fovea::gpu::sm90::indexer::resident
