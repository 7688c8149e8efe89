// SPDX-License-Identifier: Apache-2.0
/// The kernel for one or two queries of each sequence: a share's keys stream past the queries of one sequence after the other.
#pragma once

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/sm90/index_logits/decode/load.cuh"
#include "gpu/cuda/sm90/index_logits/decode/math.cuh"
#include "gpu/cuda/sm90/index_logits/decode/storage.cuh"

namespace fovea::gpu::sm90::indexer::decode {

/// Producers find their shares while others make barriers. Math warps touch no memory of other kernels before keys arrive.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) index_logits(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  auto& storage = *reinterpret_cast<Storage<Config>*>(shared);
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  if (warp < 4) {
    warpgroup_reg_dealloc<Config::kLoadRegisters>();
    if (warp == 2) prefetch_tensor_map(&params.k);
    grid_dependency_wait();
    if (warp < Config::kProducers) {
      KeyLoader<Config> keys(storage, params, warp);
      __syncthreads();
      keys.run();
    } else if (warp == 2) {
      load_queries(storage, params);
    } else {
      __syncthreads();
      store_outside_of_groups<Config>(params);
    }
  } else {
    if (warp == 4) storage.init();
    warpgroup_reg_alloc<Config::kMathRegisters>();
    __syncthreads();
    Math<Config>(storage, params, warp / 4 - 1).run();
  }
}

}  // namespace fovea::gpu::sm90::indexer::decode
