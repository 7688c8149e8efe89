// SPDX-License-Identifier: Apache-2.0
/// The kernel of all gradients over the query tiles that list a CTA's keys.
#pragma once

#include "gpu/cuda/sm90/attention_backward/kernel.cuh"
#include "gpu/cuda/sm90/block_attention_backward/config.hpp"

namespace fovea::gpu::sm90::block_attention_backward {

template <class Config>
__global__ void __launch_bounds__(Config::kThreads, 1) differentiate_listed(const __grid_constant__ Params params) {
  attention_backward::differentiate_keys_at_ticket<Config>(params);
}

template <class Config>
CudaStatus launch_listed(const Params& params, int ordinal, Stream stream) {
  return attention_backward::launch_combined<Config, &differentiate_listed<Config>>(params, ordinal, stream);
}

}  // namespace fovea::gpu::sm90::block_attention_backward
