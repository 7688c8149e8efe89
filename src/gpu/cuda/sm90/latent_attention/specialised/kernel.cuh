// SPDX-License-Identifier: Apache-2.0
/// The roles of the specialised kernel: two value warpgroups, a score warpgroup, and load warps.
#pragma once

#include "gpu/cuda/sm90/latent_attention/kernel.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/load.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/scores.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/values.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Roles<Config, Kernel::specialised> {
  static __device__ void init(Storage<Config>& storage) {
    constexpr int kKeyThreads = 32 * StagedLoader<Config>::kWarps;
    barriers_init(storage.work_full, 1);
    barriers_init(storage.work_empty, kMathThreads + Config::kScoreThreads + 32);
    barriers_init(storage.plan_full, 32);
    barriers_init(storage.plan_empty, kKeyThreads + Config::kScoreThreads / 32);
    barriers_init(storage.staged, 2 * kKeyThreads);
    barriers_init(storage.staged_free, kMathThreads);
    barriers_init(storage.empty, kMathWarps);
    barrier_init(shared_address(&storage.tiles_done), kMathThreads + Config::kScoreThreads);
    init_common<Config>(storage, 32, Config::kScoreThreads);
  }

  static __device__ __forceinline__ void run(const Params& params, Storage<Config>& storage, int warpgroup) {
    if (warpgroup < 2) {
      warpgroup_reg_alloc<Config::kMathRegisters>();
      Values<Config>(params, storage, warpgroup)();
    } else if (warpgroup == 2) {
      warpgroup_reg_alloc<Config::kScoreRegisters>();
      Scorer<Config>(params, storage)();
    } else {
      warpgroup_reg_dealloc<Config::kLoadRegisters>();
      run_load_warp(params, storage);
    }
  }
};

}  // namespace fovea::gpu::sm90::latent
