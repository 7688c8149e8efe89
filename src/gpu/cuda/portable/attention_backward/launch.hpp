// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/attention_backward/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::portable::attention_backward {

/// Computes RowStats of each query row, and clears the flags of the other kernels.
Result<void> launch_prepare(const Params& params, DType dtype, Stream stream);

/// The kernels of a row of tuning.hpp.
template <class Element, int kRow>
Result<void> launch_differentiate(const Params& params, int ordinal, Stream stream);

/// Recomputes rows that an MMA has made NaN although they see no NaN; the gradient of sinks.
Result<void> launch_finish(const Params& params, DType dtype, int multiprocessors, Stream stream);

}  // namespace fovea::gpu::portable::attention_backward
