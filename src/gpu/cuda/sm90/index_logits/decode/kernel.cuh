// SPDX-License-Identifier: Apache-2.0
/// The kernel for one or two queries of each sequence: a share's keys stream past the queries of one sequence after the other.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/index_logits/decode/load.cuh"
#include "gpu/cuda/sm90/index_logits/decode/math.cuh"
#include "gpu/cuda/sm90/index_logits/decode/storage.cuh"

namespace fovea::gpu::sm90::indexer::decode {

/// Warps that load find their share and look up its first blocks while another one makes barriers. Math warps touch no memory of other
/// kernels before keys arrive.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) index_logits(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  Share share{};
  if (warp <= Config::kProducers) {
    if (warp == Config::kProducers) prefetch_tensor_map(&params.k);
    grid_dependency_wait();
    share = share_of_cta<Config>(params);
  } else if (warp == 4) {
    storage.init();
  }
  const TileScheduler<Config> work(params, share);
  KeyLoader<Config> loader(storage, params, warp, work);
  __syncthreads();
  if (warp < 4) {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp < Config::kProducers) {
      loader.run();
    } else if (warp == Config::kProducers) {
      load_queries<Config>(storage, params, work);
    } else {
      grid_dependency_wait();
      store_outside_of_groups<Config>(params);
    }
  } else {
    warpgroup_reg_alloc<Config::kMathRegisters>();
    Math<Config>(storage, params, warp / 4 - 1).run();
  }
}

}  // namespace fovea::gpu::sm90::indexer::decode
