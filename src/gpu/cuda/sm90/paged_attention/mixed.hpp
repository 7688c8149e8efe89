// SPDX-License-Identifier: Apache-2.0
/// A batch with tall sequences and others, by two kernels beside each other.
#pragma once

#include "plan/implementation.hpp"

namespace fovea::gpu::sm90::paged_attention {

inline constexpr std::string_view kName = "cuda.sm90.paged_attention", kMixedName = "cuda.sm90.paged_attention_mixed";

/// The kernel of SequenceClass::prefill is launched first, and lets the next one start beside it. Those of SequenceClass::decode are
/// complete only after it.
detail::PlanResult<PagedAttentionArgs> plan_mixed(const detail::PagedAttentionProblem& problem, Device device);
std::string_view mixed_outdone(const detail::PagedAttentionProblem& problem, Device device);

}  // namespace fovea::gpu::sm90::paged_attention
