// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/dense/tile_scheduler.cuh"

namespace fovea::gpu::sm90::dense {

inline constexpr int kWarpgroupRows = 64;  // query rows of a consumer warpgroup

/// Named barriers. 0 is that of the whole CTA.
enum : int {
  kWarpgroup = 1,         // to 4: a warpgroup alone
  kSchedulerBarrier = 5,  // to 7: the warpgroup before arrives once its products are issued; this one waits
};

/// What consumers find in shared memory of each work tile beside the work tile itself: nothing, for most kernels.
struct NoWorkTileData {};

template <class Config>
struct Storage {
  alignas(1024) std::byte q[Config::kQueryBuffers][Config::kQueryBytes];  // (slice, row, 64); then the results of these rows
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];       // (slice, key, 64)
  alignas(1024) std::byte v[Config::kValueStages][Config::kValueBytes];   // likewise
  WorkTile work_tiles[kWorkTiles];
  // full: the planner arrives; producers wait, and the warp that loads `beside`. empty: a thread of each consumer warpgroup arrives once it
  // is done, so after all of these; the planner waits.
  alignas(8) std::uint64_t work_full[kWorkTiles], work_empty[kWorkTiles];
  // full: a producer's lane and the copy engine arrive, consumers wait. empty: a producer waits; a thread of each consumer warpgroup
  // arrives (q, once its results are read), or a lane of each consumer warp (k, v).
  std::uint64_t q_full[Config::kQueryBuffers], q_empty[Config::kQueryBuffers];
  std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
  [[no_unique_address]] typename Config::WorkTileData work_tile_data;  // of each of work_tiles

  /// By one thread, before any other uses them.
  __device__ void init_barriers() {
    constexpr int kWarpgroups = Config::kTuning.warpgroups;
    barriers_init(work_full, 1);
    barriers_init(work_empty, kWarpgroups);
    barriers_init(q_full, 1);
    barriers_init(q_empty, kWarpgroups);
    barriers_init(k_full, 1);
    barriers_init(v_full, 1);
    barriers_init(k_empty, 4 * kWarpgroups);
    barriers_init(v_empty, 4 * kWarpgroups);
    if constexpr (requires { work_tile_data.init_barriers(); }) work_tile_data.init_barriers();
    fence_barrier_init();
  }
};

}  // namespace fovea::gpu::sm90::dense
