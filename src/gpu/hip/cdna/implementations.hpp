// SPDX-License-Identifier: Apache-2.0
/// Kernels for gfx90a and gfx942, from one source.
#pragma once

#include "op/common/unowned_rows.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::cdna {

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);

/// For every operation.
Result<void> fill_unowned_rows(const detail::UnownedRows& rows, Device device, Stream stream);

}  // namespace fovea::gpu::cdna
