// SPDX-License-Identifier: Apache-2.0
/// Memory of what hides or moves single scores of a case, and what binders share.
#pragma once

#include <cstdint>
#include <vector>

#include "bound_case.hpp"
#include "values.hpp"

namespace fovea::check {

/// An impossible block number: read as one, it leaves any cache.
inline constexpr std::int32_t kGarbageBlock = 2147480000;

HostileTensor vector_of(const std::vector<std::int32_t>& values);

/// The numbers below `count` in random order.
std::vector<std::int32_t> shuffled(const Generator& values, std::int64_t count);

void bind_mask(BoundCase& bound);
void bind_blocks(BoundCase& bound, const Generator& values, const AttentionDesc& desc);
void bind_score_bias(BoundCase& bound, const Generator& values, Request<AttentionDesc, AttentionArgs>& request);

}  // namespace fovea::check
