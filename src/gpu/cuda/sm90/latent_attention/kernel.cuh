// SPDX-License-Identifier: Apache-2.0
/// The attention kernel: storage, barriers, roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/load.cuh"
#include "gpu/cuda/sm90/latent_attention/math.cuh"
#include "gpu/cuda/sm90/latent_attention/scores.cuh"
#include "gpu/cuda/sm90/latent_attention/values.cuh"

namespace fovea::gpu::sm90::latent {

/// By one thread.
template <class Config>
__device__ void init_barriers(Storage<Config>& storage) {
  constexpr int kScoreThreads = Config::kScoreThreads;
  for (int half = 0; half < kHalves; ++half) {
    barrier_init(shared_address(&storage.full[half]), Loader<Config>::KeyLoader::kArrivals);
    barrier_init(shared_address(&storage.empty[half]), Config::kFourRoles ? kMathWarps : 4 * Config::kCluster);
  }
  for (std::uint64_t& barrier : storage.collected) barrier_init(shared_address(&barrier), 32);
  barrier_init(shared_address(&storage.q_full), Config::kLoadThreads);
  barrier_init(shared_address(&storage.q_empty), Config::kFourRoles ? kScoreThreads : kMathThreads);
  if constexpr (Config::kFourRoles) {
    barrier_init(shared_address(&storage.job_full), 1);
    barrier_init(shared_address(&storage.job_empty), kMathThreads + kScoreThreads);
    for (int i = 0; i < 2; ++i) {
      barrier_init(shared_address(&storage.staged[i]), 2 * Config::kLoadThreads);
      barrier_init(shared_address(&storage.staged_free[i]), kMathThreads);
      barrier_init(shared_address(&storage.decoded[i]), kMathThreads);
    }
  }
  fence_barrier_init();
}

/// What the two math warpgroups do.
template <class Config, int kIndex>
using MathRole = std::conditional_t<Config::kFourRoles, Values<Config, kIndex>, Math<Config, kIndex>>;

/// Grid (row tiles, kv heads, parts), clusters along the row tiles.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    storage.jobs[1].collected = false;  // there is no job before the first
    init_barriers<Config>(storage);
    if (Config::kLoad == Load::boxes) {
      prefetch_map(&params.left);
      prefetch_map(&params.right);
    }
    if (params.copy_queries) prefetch_map(&params.queries);
  }
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
  wait_for_previous_kernel();

  if (warpgroup < 2) {
    registers_grow<Config::kMathRegisters>();
    if (warpgroup == 0) {
      MathRole<Config, 0>(params, storage)();
    } else {
      MathRole<Config, 1>(params, storage)();
    }
  } else if (Config::kFourRoles && warpgroup == 2) {
    if constexpr (Config::kFourRoles) {
      registers_grow<Config::kScoreRegisters>();
      Scorer<Config>(params, storage)();
    }
  } else {
    registers_shrink<Config::kLoadRegisters>();
    Loader<Config>(params, storage)();
  }
  let_next_kernel_start();
  // The other CTA may still write to this one's shared memory; and the checkers count barriers over threads that are still there.
  Config::kCluster > 1 ? cluster_sync() : __syncthreads();
}

}  // namespace fovea::gpu::sm90::latent
