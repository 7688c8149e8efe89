// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/paged_attention.hpp"
#include "op/paged_attention/problem.hpp"

namespace fovea::detail {

/// The only maker of a PagedAttentionProblem.
Result<PagedAttentionProblem> validate(const PagedAttentionDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const PagedAttentionProblem& problem, const PagedAttentionArgs& args);

/// What can only be checked where the host can read it: cu_seqlens_q and kv_len within the bounds of the plan, and the block
/// number of every block that holds a visible key within the cache. Other entries of the block table may hold anything.
Result<void> check_lengths(const PagedAttentionProblem& problem, const PagedAttentionArgs& args);

}  // namespace fovea::detail
