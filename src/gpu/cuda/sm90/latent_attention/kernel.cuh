// SPDX-License-Identifier: Apache-2.0
/// The attention kernel: storage, barriers, roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/load.cuh"
#include "gpu/cuda/sm90/latent_attention/math.cuh"

namespace fovea::gpu::sm90::latent {

/// Grid (row tiles, kv heads, parts), clusters along the row tiles.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    for (int half = 0; half < kHalves; ++half) {
      barrier_init(shared_address(&storage.full[half]), Loader<Config>::KeyLoader::kArrivals);
      barrier_init(shared_address(&storage.empty[half]), 4 * Config::kCluster);
    }
    storage.jobs[1].collected = false;  // there is no job before the first
    for (std::uint64_t& barrier : storage.collected) barrier_init(shared_address(&barrier), 32);
    barrier_init(shared_address(&storage.q_full), Config::kLoadThreads);
    barrier_init(shared_address(&storage.q_empty), kMathThreads);
    fence_barrier_init();
    if (Config::kLoad == Load::boxes) {
      prefetch_map(&params.left);
      prefetch_map(&params.right);
    }
    if (params.copy_queries) prefetch_map(&params.queries);
  }
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
  wait_for_previous_kernel();

  if (warpgroup >= 2) {
    registers_shrink<Config::kLoadRegisters>();
    Loader<Config>(params, storage)();
  } else {
    registers_grow<Config::kMathRegisters>();
    if (warpgroup == 0) {
      Math<Config, 0>(params, storage)();
    } else {
      Math<Config, 1>(params, storage)();
    }
  }
  let_next_kernel_start();
  // The other CTA may still write to this one's shared memory; and the checkers count barriers over threads that are still there.
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
}

}  // namespace fovea::gpu::sm90::latent
