// SPDX-License-Identifier: Apache-2.0
/// Kernels for Hopper (compute capability 9.0), with its own instructions.
#pragma once

#include "plan/implementation.hpp"

namespace fovea::gpu::sm90 {

inline constexpr int kCapability = 90;

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits);

}  // namespace fovea::gpu::sm90
