// SPDX-License-Identifier: Apache-2.0
/// The kernel: CTAs that stay, each with a producer's warpgroup and math warpgroups.
#pragma once

#include "gpu/cuda/sm90/index_logits/load.cuh"
#include "gpu/cuda/sm90/index_logits/math.cuh"
#include "gpu/cuda/sm90/index_logits/storage.cuh"

namespace fovea::gpu::sm90::indexer {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) index_logits(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (threadIdx.x == 0) {
    storage.init();
    prefetch_tensor_map(&params.q);
    prefetch_tensor_map(&params.k);
  }
  find_share<Config>(storage, params);
  __syncthreads();
  if (warp < 4) {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 0) load_queries(storage, params);
    if (warp == 1) load_keys(storage, params);
    if (warp == 2) store_outside_of_groups<Config>(params);
    if (warp == 3) store_unseen(storage, params);
  } else {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    Math<Config>(storage, params, warp / 4 - 1).run();
  }
}

}  // namespace fovea::gpu::sm90::indexer
