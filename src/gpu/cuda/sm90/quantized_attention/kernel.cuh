// SPDX-License-Identifier: Apache-2.0
/// The 8-bit kernel: storage, barriers, roles.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/dense/load.cuh"
#include "gpu/cuda/sm90/dense/math.cuh"
#include "gpu/cuda/sm90/quantized_attention/config.hpp"
#include "gpu/cuda/sm90/quantized_attention/epilogue.cuh"

namespace fovea::gpu::sm90::quantized_attention {

template <class Config>
using Storage = dense::Storage<Config>;

/// Persistent CTAs, one for each multiprocessor.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warpgroup = uniform(threadIdx.x / 128);
  if (threadIdx.x == 0) {
    storage.init_barriers();
    prefetch_tensor_map(&params.q.map);
    prefetch_tensor_map(&params.k.map);
  }
  __syncthreads();
  grid_dependency_wait();
  if (warpgroup < Config::kTuning.warpgroups) {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    dense::Math<Config, Epilogue<Config>, IntScores<Config>>(params, storage, warpgroup)();
  } else {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (Config::k8BitValues) fence_global_for_async();  // bulk copies read value tiles of a kernel before
    if (threadIdx.x == Config::kMathThreads) dense::Loader<Config>(params, storage)();
    if (threadIdx.x / 32 == Config::kMathThreads / 32 + 1) dense::schedule_work_tiles<Config>(params, storage);
    if (threadIdx.x / 32 == Config::kMathThreads / 32 + 2) storage.work_tile_data.load(params, storage);
    __syncwarp();
  }
  launch_dependents();
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) <= 227 * 1024);
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(ctas)),
                          .block = dim3(Config::kThreads),
                          .shared_bytes = sizeof(Storage<Config>),
                          .programmatic = true};
  return launch(&attend<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::quantized_attention
