// SPDX-License-Identifier: Apache-2.0
/// The host's side of the kernels: plan.cu calls these; the build instantiates them.
#pragma once

#include "gpu/cuda/portable/paged_attention/config.hpp"
#include "gpu/cuda/portable/paged_attention/params.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu::portable::paged_attention {

template <class Config>
Result<void> launch_attend(const Params& params, int ordinal, Stream stream);

}  // namespace fovea::gpu::portable::paged_attention
