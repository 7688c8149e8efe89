// SPDX-License-Identifier: Apache-2.0
/// The kernels of dq, and of dk and dv, over listed tiles.
#pragma once

#include "gpu/cuda/portable/attention_backward/kernel.cuh"
#include "gpu/cuda/portable/block_attention_backward/config.hpp"

namespace fovea::gpu::portable::block_attention_backward {

template <class Element, int kRow>
CudaStatus launch_listed(const Params& params, int ordinal, Stream stream) {
  return attention_backward::launch_one<Config<Element, kRow>>(params, ordinal, stream);
}

}  // namespace fovea::gpu::portable::block_attention_backward
