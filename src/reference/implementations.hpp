// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "plan/implementation.hpp"

namespace fovea::reference {

std::span<const detail::AttentionImplementation> attention_implementations();
std::span<const detail::PagedAttentionImplementation> paged_attention_implementations();
std::span<const detail::PagedCacheAppendImplementation> paged_cache_append_implementations();
std::span<const detail::MergeStatesImplementation> merge_states_implementations();

}  // namespace fovea::reference
