// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these; the build instantiates them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/attention/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::portable::attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::portable::attention
