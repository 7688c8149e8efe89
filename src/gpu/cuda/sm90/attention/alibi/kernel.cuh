// SPDX-License-Identifier: Apache-2.0
/// The forward kernel with ALiBi: key numbers in shared memory, then the roles of every CTA.
#pragma once

#include "gpu/cuda/sm90/attention/alibi/config.hpp"
#include "gpu/cuda/sm90/attention/kernel.cuh"

namespace fovea::gpu::sm90::attention::alibi {

/// Persistent CTAs, one for each multiprocessor.
template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) attend_with_alibi(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  reinterpret_cast<dense::Storage<Config>*>(shared)->key_numbers.fill();
  take_roles<Config>(params, shared);
}

template <class Config>
CudaStatus launch_with_alibi(const Params& params, int ctas, int ordinal, Stream stream) {
  return launch_persistent<Config, &attend_with_alibi<Config>>(params, ctas, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::attention::alibi
