// SPDX-License-Identifier: Apache-2.0
/// The kernel of all gradients with ALiBi: query numbers in shared memory, then the roles of every CTA.
#pragma once

#include "gpu/cuda/sm90/attention_backward/alibi/config.hpp"
#include "gpu/cuda/sm90/attention_backward/kernel.cuh"

namespace fovea::gpu::sm90::attention_backward::alibi {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate_with_alibi(const __grid_constant__ Params params) {
  extern __shared__ __align__(1024) std::byte shared[];
  reinterpret_cast<Storage<Config>*>(shared)->query_numbers.fill();
  differentiate_keys_at_ticket<Config>(params);
}

template <class Config>
CudaStatus launch_with_alibi(const Params& params, int ordinal, Stream stream) {
  return launch_combined<Config, &differentiate_with_alibi<Config>>(params, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::attention_backward::alibi
