// SPDX-License-Identifier: Apache-2.0
/// Kernels for Blackwell's data centre GPUs (compute capability 10.0), with their own instructions.
#pragma once

#include "plan/implementation.hpp"

namespace fovea::gpu::sm100 {

inline constexpr int kCapability = 100;

detail::Implementations<detail::Attention> implementations(detail::Attention);

}  // namespace fovea::gpu::sm100
