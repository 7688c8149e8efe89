// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"

namespace fovea::detail {

/// The only maker of an AttentionProblem.
Result<AttentionProblem> validate(const AttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, and aligned. Looks at no data.
Result<void> check_args(const AttentionProblem& problem, const AttentionArgs& args);

/// What can only be checked where the host can read the lengths: cu_seqlens within the bounds of the plan.
Result<void> check_lengths(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace fovea::detail
