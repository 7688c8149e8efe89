// SPDX-License-Identifier: Apache-2.0
/// Two math warpgroups that score by turns, and the warps that load for them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/launch.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/math.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Roles<Config, Kernel::pingpong> {
  static __device__ void init(Storage<Config>& storage) {
    storage.work_tiles[1].reduced = 0;  // there is no work tile before the first
    barriers_init(storage.full, Loader<Config>::KeyLoader::kArrivals);
    barriers_init(storage.empty, 4 * Config::kCluster);
    init_common<Config>(storage, Config::kLoadThreads, kMathThreads);
  }

  static __device__ __forceinline__ void run(const Params& params, Storage<Config>& storage, int warpgroup) {
    if (warpgroup < 2) {
      warpgroup_reg_alloc<Config::kMathRegisters>();
      Math<Config>(params, storage, warpgroup)();
    } else {
      warpgroup_reg_dealloc<Config::kLoadRegisters>();
      Loader<Config>(params, storage)();
    }
  }
};

}  // namespace fovea::gpu::sm90::latent
