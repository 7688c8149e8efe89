// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls this; the build instantiates it.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gpu/cuda/portable/quantized_attention/config.hpp"
#include "gpu/cuda/portable/quantized_attention/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::portable::quantized_attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

/// Target of the code that a device runs: 89 is compute capability 8.9. All kernels of a build have the same targets.
template <class Config>
int target_on(int ordinal);

}  // namespace fovea::gpu::portable::quantized_attention
