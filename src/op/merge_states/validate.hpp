// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/merge.hpp"
#include "op/merge_states/problem.hpp"

namespace fovea::detail {

/// The only maker of a MergeStatesProblem.
Result<MergeStatesProblem> validate(const MergeStatesDesc& desc, const PlanOptions& options);

/// Pointers of run(): as many parts as planned, present and aligned.
Result<void> check_args(const MergeStatesProblem& problem, const MergeStatesArgs& args);

}  // namespace fovea::detail
