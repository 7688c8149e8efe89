// SPDX-License-Identifier: Apache-2.0
/// The launch of the kernel for block masks: that of attention, with lists.
#pragma once

#include "gpu/cuda/sm90/block_attention/exact_row.cuh"
// The specialisation above comes before the code that uses it.
#include "gpu/cuda/sm90/attention/kernel.cuh"

namespace fovea::gpu::sm90::block_attention {

/// Persistent CTAs, one for each multiprocessor.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend_listed(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  attention::take_roles<Config>(params, shared);
}

template <class Config>
CudaStatus launch_listed(const Params& params, int ctas, int ordinal, Stream stream) {
  return attention::launch_persistent<Config, &attend_listed<Config>>(params, ctas, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::block_attention
