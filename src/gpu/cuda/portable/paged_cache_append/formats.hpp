// SPDX-License-Identifier: Apache-2.0
/// The host's part of quantising to formats.
#pragma once

#include "gpu/runtime.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::gpu::portable::append {

inline bool has_format(const detail::AppendSide& side) { return side.format != KvFormat::rows; }

/// Why sides with formats are declined, if they are.
Result<void> accept_formats(const detail::PagedCacheAppendProblem& problem);
/// Quantises the sides that have a format.
Result<void> launch_formats(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args, Stream stream);

}  // namespace fovea::gpu::portable::append
