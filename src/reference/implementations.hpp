// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/implementation.hpp"

namespace fovea::reference {

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);

}  // namespace fovea::reference
