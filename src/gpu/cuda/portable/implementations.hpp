// SPDX-License-Identifier: Apache-2.0
/// Kernels in plain CUDA C++, for every device of compute capability 7.5 and later.
#pragma once

#include "plan/implementation.hpp"

namespace fovea::gpu::portable {

inline constexpr int kLowestCapability = 75;

detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);

}  // namespace fovea::gpu::portable
