// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/paged_attention.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::detail {

/// The only maker of a PagedCacheAppendProblem.
Result<PagedCacheAppendProblem> validate(const PagedCacheAppendDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);

/// Where the host can read slot_mapping: every slot is -1 or inside the cache.
Result<void> check_slots(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);

}  // namespace fovea::detail
