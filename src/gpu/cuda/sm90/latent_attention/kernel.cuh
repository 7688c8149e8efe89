// SPDX-License-Identifier: Apache-2.0
/// The attention kernel: storage, barriers, roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/load.cuh"
#include "gpu/cuda/sm90/latent_attention/load_staged.cuh"
#include "gpu/cuda/sm90/latent_attention/math.cuh"
#include "gpu/cuda/sm90/latent_attention/scores.cuh"
#include "gpu/cuda/sm90/latent_attention/values.cuh"

namespace fovea::gpu::sm90::latent {

template <int kCount>
__device__ void init(std::uint64_t (&barriers)[kCount], int arrivals) {
  for (std::uint64_t& barrier : barriers) barrier_init(shared_address(&barrier), arrivals);
}

/// By one thread.
template <class Config>
__device__ void init_barriers(Storage<Config>& storage) {
  if constexpr (Config::kFourRoles) {
    constexpr int kBringers = 32 * StagedLoader<Config>::kWarps;
    init(storage.job_full, 1);
    init(storage.job_empty, kMathThreads + Config::kScoreThreads + 32);
    init(storage.plan_full, 32);
    init(storage.plan_empty, kBringers + Config::kScoreThreads / 32);
    init(storage.staged, 2 * kBringers);
    init(storage.staged_free, kMathThreads);
    init(storage.empty, kMathWarps);
    barrier_init(shared_address(&storage.tiles_done), kMathThreads + Config::kScoreThreads);
  } else {
    init(storage.full, Loader<Config>::KeyLoader::kArrivals);
    init(storage.empty, 4 * Config::kCluster);
  }
  init(storage.collected, 32);
  barrier_init(shared_address(&storage.added), kMathThreads);
  barrier_init(shared_address(&storage.q_full), Config::kFourRoles ? 32 : Config::kLoadThreads);
  barrier_init(shared_address(&storage.q_empty), Config::kFourRoles ? Config::kScoreThreads : kMathThreads);
  fence_barrier_init();
}

/// Grid (row tiles, kv heads, parts), clusters along the row tiles.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    if constexpr (!Config::kFourRoles) storage.jobs[1].collected = 0;  // there is no job before the first
    init_barriers<Config>(storage);
    if (Config::kLoad == Load::boxes) {
      prefetch_map(&params.left);
      prefetch_map(&params.right);
    }
    if (params.copy_queries) prefetch_map(&params.queries);
  }
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
  wait_for_previous_kernel();

  if constexpr (Config::kFourRoles) {
    if (warpgroup < 2) {
      registers_grow<Config::kMathRegisters>();
      Values<Config>(params, storage, warpgroup)();
    } else if (warpgroup == 2) {
      registers_grow<Config::kScoreRegisters>();
      Scorer<Config>(params, storage)();
    } else {
      registers_shrink<Config::kLoadRegisters>();
      RolesLoader<Config>(params, storage)();
    }
  } else if (warpgroup < 2) {
    registers_grow<Config::kMathRegisters>();
    Math<Config>(params, storage, warpgroup)();
  } else {
    registers_shrink<Config::kLoadRegisters>();
    Loader<Config>(params, storage)();
  }
  let_next_kernel_start();
  // The other CTA may still write to this one's shared memory; and the checkers count barriers over threads that are still there.
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
}

}  // namespace fovea::gpu::sm90::latent
