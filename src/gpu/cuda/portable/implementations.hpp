// SPDX-License-Identifier: Apache-2.0
/// Kernels in CUDA C++ and instructions that all have, for every device of compute capability 7.5 and later.
#pragma once

#include "op/common/unowned_rows.hpp"
#include "plan/implementation.hpp"

namespace fovea::gpu::portable {

inline constexpr int kLowestCapability = 75;

detail::Implementations<detail::Attention> implementations(detail::Attention);
detail::Implementations<detail::AttentionBackward> implementations(detail::AttentionBackward);
detail::Implementations<detail::PagedAttention> implementations(detail::PagedAttention);
detail::Implementations<detail::PagedCacheAppend> implementations(detail::PagedCacheAppend);
detail::Implementations<detail::MergeStates> implementations(detail::MergeStates);
detail::Implementations<detail::LatentAttention> implementations(detail::LatentAttention);
detail::Implementations<detail::SparseLatentAttention> implementations(detail::SparseLatentAttention);
detail::Implementations<detail::QuantizeLatentCache> implementations(detail::QuantizeLatentCache);
detail::Implementations<detail::DequantizeLatentCache> implementations(detail::DequantizeLatentCache);
detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits);
detail::Implementations<detail::TopkRows> implementations(detail::TopkRows);
detail::Implementations<detail::QuantizeQkInt8> implementations(detail::QuantizeQkInt8);
detail::Implementations<detail::QuantizeV> implementations(detail::QuantizeV);
detail::Implementations<detail::QuantizedAttention> implementations(detail::QuantizedAttention);
detail::Implementations<detail::QuantizeAndAttend> implementations(detail::QuantizeAndAttend);

/// For every operation.
Result<void> fill_unowned_rows(const detail::UnownedRows& rows, Device device, Stream stream);

}  // namespace fovea::gpu::portable
