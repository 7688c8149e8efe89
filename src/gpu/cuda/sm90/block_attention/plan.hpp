// SPDX-License-Identifier: Apache-2.0
/// Dense attention under a block mask: accepts or declines.
#pragma once

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::sm90::block_attention {

inline constexpr std::string_view kName = "cuda.sm90.block_attention";

detail::PlanResult<AttentionArgs> plan(const detail::AttentionProblem& problem, Device device);

}  // namespace fovea::gpu::sm90::block_attention
