// SPDX-License-Identifier: Apache-2.0
/// The forward kernel: a work tile for each CTA.
#pragma once

#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/attention/math.cuh"

namespace fovea::gpu::portable::attention {

/// Whether a device of this target can run the kernel; else it is compiled to nothing.
template <class Config>
inline constexpr bool kRuns = kHasMma<typename Config::Element> && (kTarget != 75 || sizeof(Storage<Config>) <= 64 * 1024);

template <class Config>
__global__ void __launch_bounds__(Config::kThreads) attend(const __grid_constant__ Params params) {
  if constexpr (kRuns<Config>) {
    extern __shared__ __align__(128) std::byte shared[];
    auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
    WorkTile work;  // every warp finds it: to wait for one of them takes longer
    if (!WorkFinder<Config>(params)(work)) return;
    if (threadIdx.x == 0) {
      static_cast<WorkTile&>(storage.work) = work;
      if constexpr (Config::kTakesDropout) {
        const std::int64_t* const state = params.bias.dropout_state;
        if (state != nullptr) storage.work.random = detail::philox_key(state[0], state[1]);
      }
    }
    const Loader<Config> load(params, storage, work);
    load.queries();
    if (work.last > work.first) {
      const int tile = KeyTiles<Config>(params, work).next(work.last - 1);
      load.keys(tile, 0);
      if (Config::kStages == 2) load.values(tile, 0);
    }
    copy_async_commit();
    Math<Config>{params, storage}(work.first, work.last);
  }
}

template <class Config>
CudaStatus launch_attend(const Params& params, int ctas, int ordinal, Stream stream) {
  static_assert(sizeof(Storage<Config>) == Config::kTuning.shared_bytes());
  if (const CudaStatus good = allow_shared_bytes<&attend<Config>>(ordinal, sizeof(Storage<Config>)); !good) return good;
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(ctas)), .block = dim3(Config::kThreads), .shared_bytes = sizeof(Storage<Config>)};
  return launch(&attend<Config>, shape, stream, params);
}

}  // namespace fovea::gpu::portable::attention
