// SPDX-License-Identifier: Apache-2.0
/// The producer's warps: keys, queries with their weights, and what rows do not see.
#pragma once

#include "gpu/cuda/sm90/index_logits/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::indexer {

/// Boxes outside of the keys arrive as zeros.
template <class Config>
__device__ void load_keys(Storage<Config>& storage, const Params& params) {
  const int lane = lane_index();
  PipelineState<Config::kKeyStages> at;
  const auto begin_tile = [&](const KeyTile& tile, int bytes) {
    barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
    if (lane == 0) {
      storage.tiles[at.stage] = tile;
      barrier_arrive_expect_tx(shared_address(&storage.k_full[at.stage]), bytes);
    }
    __syncwarp();
  };
  for (TileScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    if (work.rows_seeing == 0) continue;
    begin_tile({work.rows_seeing, work.group.first_row, work.first_key}, Config::kKeyBytes);
    for (int key = lane * params.box; key < Config::kKeys; key += 32 * params.box) {
      const int2 place = place_of(params, work.group.first_row, work.first_key + key);
      tma_load(shared_address(storage.k[at.stage]) + key * kDim, &params.k, {0, place.y, 0, 0, place.x},
               shared_address(&storage.k_full[at.stage]));
    }
    at.advance();
  }
  begin_tile({}, 0);
}

template <class Config>
__device__ void load_queries(Storage<Config>& storage, const Params& params) {
  const int lane = lane_index(), heads = static_cast<int>(params.shape.heads);
  PipelineState<Config::kQueryStages> at;
  for (TileScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    for (unsigned rows = work.rows_seeing; rows != 0; rows &= rows - 1) {
      const int place = __ffs(static_cast<int>(rows)) - 1, row = work.group.first_row + place;
      const int2 seen = {__shfl_sync(~0u, work.seen.x, place), __shfl_sync(~0u, work.seen.y, place)};
      for (int first = 0; first < heads; first += Config::kHeads) {
        constexpr int kOwn = Config::kHeads / 32;
        float weights[kOwn];
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          const int head = first + i * 32 + lane;
          weights[i] = head < heads ? params.args.weights[row * params.shape.weights_row + head] : 0.0f;
        }
        barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) storage.weights[at.stage][i * 32 + lane] = -weights[i];
        const std::uint32_t full = shared_address(&storage.q_full[at.stage]);
        if (lane == 0) {
          storage.seen[at.stage] = seen;
          barrier_arrive_expect_tx(full, Config::kQueryBytes);
          tma_load(shared_address(storage.q[at.stage]), &params.q, {0, first, 0, 0, row}, full);
        } else {
          barrier_arrive(full);
        }
        at.advance();
      }
    }
  }
}

/// -inf for the rows of a group that see no key of a tile, by a warp.
template <class Config>
__device__ void store_unseen(const Storage<Config>& storage, const Params& params) {
  if (params.shape.keep_outside) return;
  for (TileScheduler<Config> work(params, storage.share); work.valid(); work.next()) {
    for (int row = 0; row < work.group.rows; ++row) {
      if ((work.rows_seeing >> row & 1) != 0) continue;
      store_outside(params, work.group.first_row + row, work.first_key,
                    min(work.first_key + Config::kKeys, static_cast<int>(params.shape.columns)));
    }
  }
}

}  // namespace fovea::gpu::sm90::indexer
