// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/latent_attention.hpp"
#include "op/latent_attention/problem.hpp"

namespace fovea::detail {

/// The only maker of a LatentAttentionProblem.
Result<LatentAttentionProblem> validate(const LatentAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const LatentAttentionProblem& problem, const LatentAttentionArgs& args);

/// Where the host can read them: lengths within the bounds of the plan, block numbers of visible keys within the cache.
Result<void> check_lengths(const LatentAttentionProblem& problem, const LatentAttentionArgs& args);

}  // namespace fovea::detail
