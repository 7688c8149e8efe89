// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::sm90::attention_backward {

/// What is known of each query row, and zeros where the other kernels count and flag.
Result<void> launch_prepare(const Params& params, DType dtype, Stream stream);

/// dq, dk and dv: by one kernel, or where Config::kApart by two.
template <class Config>
Result<void> launch_differentiate(const Params& params, int ordinal, Stream stream);

/// Rows that a product has made NaN although they see no NaN, and the gradient of sinks.
Result<void> launch_finish(const Params& params, DType dtype, Stream stream);

}  // namespace fovea::gpu::sm90::attention_backward
