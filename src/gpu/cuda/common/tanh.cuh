// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/common/tanh.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu {

__device__ inline float tanh_of(float twice_log2) { return tanh_of<Warp>(twice_log2); }

}  // namespace fovea::gpu
