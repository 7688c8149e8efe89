// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/latent_attention.hpp"
#include "op/sparse_latent_attention/problem.hpp"

namespace fovea::detail {

/// The only maker of a SparseLatentAttentionProblem.
Result<SparseLatentAttentionProblem> validate(const SparseLatentAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Nothing else can be wrong: bad
/// indices are ignored, and so is what a topk_length outside 0 .. topk asks for beyond it.
Result<void> check_args(const SparseLatentAttentionProblem& problem, const SparseLatentAttentionArgs& args);

}  // namespace fovea::detail
