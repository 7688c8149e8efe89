// SPDX-License-Identifier: Apache-2.0
/// The CPU's entries of the ordered lists, fastest instruction set first.
#pragma once

#include <string_view>

#include "cpu/instruction_sets.hpp"
#include "plan/implementation.hpp"

namespace fovea::cpu {

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);
detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8);
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV);
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention);
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend);

}  // namespace fovea::cpu
