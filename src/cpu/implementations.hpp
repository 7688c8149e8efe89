// SPDX-License-Identifier: Apache-2.0
/// The CPU's rows of the ordered lists, fastest instruction set first.
#pragma once

#include <string_view>

#include "cpu/instruction_sets.hpp"
#include "plan/implementation.hpp"

namespace fovea::cpu {

std::span<const detail::AttentionImplementation> attention_implementations();
std::span<const detail::PagedAttentionImplementation> paged_attention_implementations();
std::span<const detail::PagedCacheAppendImplementation> paged_cache_append_implementations();
std::span<const detail::MergeStatesImplementation> merge_states_implementations();

}  // namespace fovea::cpu
