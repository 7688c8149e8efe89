// SPDX-License-Identifier: Apache-2.0
/// The 8-bit kernel: a work tile for each CTA.
#pragma once

#include "gpu/cuda/portable/quantized_attention/config.hpp"
#include "gpu/cuda/portable/quantized_attention/math.cuh"

namespace fovea::gpu::portable::quantized_attention {

/// Whether a device of this target can run the kernel; else it is compiled to nothing.
template <class Config>
inline constexpr bool kRuns = kTarget != 75 || sizeof(Storage<Config>) <= 64 * 1024;

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) attend(const __grid_constant__ Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    bool some = true;
    if (threadIdx.x < 32) {
      WorkTile work;
      some = attention::WorkFinder<Config>(params)(work);
      if (threadIdx.x == 0) storage.work = work;
    }
    if (__syncthreads_and(some) == 0) return;
    const Loader<Config> load(params, storage);
    load.queries();
    const int last = storage.work.last;
    if (last > storage.work.first) {
      load.keys(last - 1, 0);
      if (Config::kStages == 2) load.values(last - 1, 0);
    }
    copy_async_commit();
    Math<Config>{params, storage}(load);
  }
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) == Config::kTuning.shared_bytes(Config::kValueSize));
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&attend<Config>, shape, stream, params);
}

template <class Config>
int target_on(int ordinal) {
  return gpu::target_on(reinterpret_cast<const void*>(&attend<Config>), ordinal);
}

}  // namespace fovea::gpu::portable::quantized_attention
