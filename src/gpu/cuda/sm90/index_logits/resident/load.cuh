// SPDX-License-Identifier: Apache-2.0
/// The producer's warps: queries with their weights, keys, scales of keys, and columns that no query of a tile sees.
#pragma once

#include "gpu/cuda/sm90/index_logits/load.cuh"
#include "gpu/cuda/sm90/index_logits/resident/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::indexer::resident {

__device__ inline void copy_word_async(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

template <class Config>
__device__ void load_queries(Storage<Config>& storage, const Params& params) {
  const int lane = lane_index(), heads = static_cast<int>(params.shape.heads);
  PipelineState<Config::kQueryStages> at;
  const auto publish = [&](const QueryTile& tile, int bytes) {
    const std::uint32_t full = shared_address(&storage.q_full[at.stage]);
    if (lane != 0) return barrier_arrive(full);
    storage.tiles[at.stage] = tile;
    barrier_arrive_expect_tx(full, bytes);
    if (bytes > 0) tma_load(shared_address(storage.q[at.stage]), &params.q, {0, 0, 0, 0, tile.first_row}, full);
  };
  for (Work<Config> work(params); work.valid(); work.next()) {
    if (work.tile.stages == 0) continue;
    barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
    for (int i = lane; i < Config::kQueries * Config::kHeads; i += 32) {
      const int query = i / Config::kHeads, head = i % Config::kHeads;
      const bool exists = query < work.tile.rows && head < heads;
      storage.weights[at.stage][i] = exists ? -params.args.weights[(work.tile.first_row + query) * params.shape.weights_row + head] : 0.0f;
    }
    if (lane < Config::kQueries) storage.seen[at.stage][lane] = work.seen;
    publish(work.tile, Config::kQueryBytes);
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
  for (Work<Config> work(params); work.valid(); work.next()) {
    for (int stage = 0; stage < work.tile.stages; ++stage, at.advance()) {
      const int2 place = place_of(params, work.tile.first_row, work.tile.first_key + stage * Config::kKeys + key);
      const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
      barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
      if (lane == 0) barrier_arrive_expect_tx(full, Config::kKeyBytes);
      __syncwarp();
      if (key < Config::kKeys) {
        tma_load(shared_address(storage.k[at.stage]) + key * kDim, &params.k, {0, place.y, 0, 0, place.x}, full);
      }
    }
  }
}

/// The scales of keys, by copies that do not hold up the warp. NaN for a block that the cache does not have.
template <class Config>
__device__ void load_scales(Storage<Config>& storage, const Params& params) {
  constexpr int kOwn = Config::kKeys / 32;
  const detail::IndexLogitsShape& shape = params.shape;
  const int lane = lane_index();
  PipelineState<Config::kKeyStages> at;
  for (Work<Config> work(params); work.valid(); work.next()) {
    for (int stage = 0; stage < work.tile.stages; ++stage, at.advance()) {
      const float* scales[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int column = work.tile.first_key + stage * Config::kKeys + i * 32 + lane;
        const int2 place = column < shape.columns ? place_of(params, work.tile.first_row, column) : int2{-1, 0};
        const std::int64_t offset = shape.paged ? place.x * shape.scale_block + place.y * shape.scale_token : place.y * shape.scale_block;
        scales[i] = place.x < 0 ? nullptr : params.args.k_scale + offset;
      }
      barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        float& to = storage.scales[at.stage][i * 32 + lane];
        if (scales[i] == nullptr) {
          to = NAN;
        } else {
          copy_word_async(shared_address(&to), scales[i]);
        }
      }
      const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
      copy_async_arrive(full);
      barrier_arrive(full);
    }
  }
}

/// -inf for the columns of a tile before and behind its stages, from the lanes of a warp.
template <class Config>
__device__ void store_unseen(const Params& params) {
  if (params.shape.keep_outside) return;
  const int lane = lane_index();
  for (Work<Config> work(params); work.valid(); work.next()) {
    const int seen_end = min(work.tile.first_key + work.tile.stages * Config::kKeys, work.end);
    for (int row = 0; row < work.tile.rows; ++row) {
      for (int column = work.begin + lane; column < work.tile.first_key; column += 32) {
        store_logit(params, work.tile.first_row + row, column, -INFINITY);
      }
      for (int column = seen_end + lane; column < work.end; column += 32) {
        store_logit(params, work.tile.first_row + row, column, -INFINITY);
      }
    }
  }
}

}  // namespace fovea::gpu::sm90::indexer::resident
