// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these; the build instantiates them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::sm90::attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::attention
