// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these; each of instances/ defines some of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/attention/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::sm90::attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ctas, int ordinal, Stream stream);

/// Fills `tiles` of value_tiles, which counts heads too.
Result<void> launch_transpose(const Params& params, int key_tile, int columns, int tiles, Stream stream);

/// Merges the splits.
Result<void> launch_combine(const Params& params, DType dtype, Stream stream);

}  // namespace fovea::gpu::sm90::attention
