// SPDX-License-Identifier: Apache-2.0
/// Plans of the kernel for wide heads. The entries of dense and of paged attention take them as
/// their own.
#pragma once

#include <algorithm>
#include <string_view>

#include "op/attention/problem.hpp"
#include "op/common/head_dims.hpp"
#include "op/paged_attention/problem.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::portable::wide_attention {

/// Head dims that the entries' other kernels do not take.
inline bool takes(const detail::AttentionCore& problem) { return std::max(problem.head_dim_qk, problem.head_dim_v) > detail::kMaxHeadDim; }

/// `name`: of the entry, which has accepted dtypes and extents.
detail::PlanResult<AttentionArgs> plan(const detail::AttentionProblem& problem, Device device, std::string_view name);
detail::PlanResult<PagedAttentionArgs> plan(const detail::PagedAttentionProblem& problem, Device device, std::string_view name);

}  // namespace fovea::gpu::portable::wide_attention
