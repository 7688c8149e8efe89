// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernel: plan.cu calls this; the build instantiates it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/sm90/paged_attention/config.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::sm90::paged_attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::paged_attention
