// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention_backward.hpp"
#include "op/attention_backward/problem.hpp"

namespace fovea::detail {

/// The only maker of an AttentionBackwardProblem.
Result<AttentionBackwardProblem> validate(const AttentionBackwardDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const AttentionBackwardProblem& problem, const AttentionBackwardArgs& args);

}  // namespace fovea::detail
