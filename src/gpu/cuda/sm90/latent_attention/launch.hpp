// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: launch_plan.cu calls these.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::sm90::latent {

Result<void> launch_schedule(const Params& params, Stream stream);

using Attend = Result<void> (*)(const Params& params, int ordinal, Stream stream);

/// The launch of the attention kernel of a row of tuning.hpp, or null where the row has none.
template <class Element, int kRow>
Attend attend_of(int head_dim, bool edges);

/// `blocks`: upper bound of the grid size.
template <class Element>
Result<void> launch_combine(const Params& params, int blocks, Stream stream);

}  // namespace fovea::gpu::sm90::latent
