// SPDX-License-Identifier: Apache-2.0
/// The kernel of paged attention: storage, barriers, roles.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/dense/math.cuh"
#include "gpu/cuda/sm90/paged_attention/active_ctas.cuh"
#include "gpu/cuda/sm90/paged_attention/config.hpp"
#include "gpu/cuda/sm90/paged_attention/load.cuh"

namespace fovea::gpu::sm90::paged_attention {

/// Persistent CTAs, one for each multiprocessor. Co-launched with another kernel, CTAs that are not active
/// leave their multiprocessors to it.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend_full_tiles(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<dense::Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    storage.init_barriers();
    for (const ClippedRows* rows : {&params.q, &params.k, &params.v}) prefetch_tensor_map(&rows->map);
  }
  __syncthreads();
  grid_dependency_wait();
  if (params.prefill_from > 0) launch_dependents();
  const int ctas = active_ctas<Config>(params);
  if (static_cast<int>(blockIdx.x) >= ctas) return;
  if (warpgroup < Config::kTuning.warpgroups) {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    dense::Math<Config>(params, storage, warpgroup)();
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    const int warp = uniform(threadIdx.x / 32) - Config::kMathThreads / 32;
    if (warp == 0) Loader<Config, false>(params, storage)();
    if (warp == 1) dense::schedule_work_tiles<Config>(params, storage, ctas);
    if (warp == 2) Loader<Config, true>(params, storage)();
    __syncwarp();
  }
  launch_dependents();
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  using Storage = dense::Storage<Config>;
  static_assert(sizeof(Storage) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&attend_full_tiles<Config>>(ordinal, sizeof(Storage)); !good) return good;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage), .programmatic = true};
  return launch(&attend_full_tiles<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::paged_attention
