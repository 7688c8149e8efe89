// SPDX-License-Identifier: Apache-2.0
/// The forward kernel: storage, barriers, roles.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/dense/load.cuh"
#include "gpu/cuda/sm90/dense/math.cuh"
#include "gpu/cuda/sm90/dense/transpose_values.cuh"

namespace fovea::gpu::sm90::attention {

/// All threads of the CTA, or of its cluster.
template <class Config>
__device__ void sync() {
  if constexpr (Config::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
}

/// The roles of a CTA. `params` is the kernel's, `shared` its memory.
template <class Config>
__device__ __forceinline__ void take_roles(const typename Config::Params& params, std::byte* shared) {
  auto& storage = *reinterpret_cast<dense::Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    storage.init_barriers();
    for (const ClippedRows* rows : {&params.q, &params.k, &params.v}) prefetch_tensor_map(&rows->map);
    if constexpr (Config::kStagedResults) prefetch_tensor_map(&params.out.map);
  }
  sync<Config>();
  grid_dependency_wait();
  if (warpgroup < Config::kTuning.warpgroups) {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    dense::Math<Config>(params, storage, warpgroup)();
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (threadIdx.x == Config::kMathThreads) dense::Loader<Config>(params, storage)();
    if (threadIdx.x / 32 == Config::kMathThreads / 32 + 1) dense::schedule_work_tiles<Config>(params, storage);
    if constexpr (Config::kRawStages > 0) {
      const int warp = uniform(threadIdx.x / 32) - Config::kThreads / 32 + dense::kTransposingWarps;
      if (warp >= 0) dense::ValueTransposer<Config>(storage, warp)();
    }
    __syncwarp();
  }
  launch_dependents();
  // No CTA ends while another one may arrive at its barriers.
  if constexpr (Config::kCluster > 1) cluster_sync();
}

/// Persistent CTAs, one for each multiprocessor.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  take_roles<Config>(params, shared);
}

/// Launches `kernel`, attend() or one like it, with parameters of its own.
template <class Config, auto kernel>
CudaStatus launch_persistent(const typename Config::Params& params, int ctas, int ordinal, Stream stream) {
  static_assert(sizeof(dense::Storage<Config>) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<kernel>(ordinal, sizeof(dense::Storage<Config>)); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ctas)),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(dense::Storage<Config>),
                          .cluster = dim3(Config::kCluster),
                          .programmatic = true};
  return launch(kernel, shape, stream, params);
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  return launch_persistent<Config, &attend<Config>>(params, ctas, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::attention
