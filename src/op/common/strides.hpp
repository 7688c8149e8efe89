// SPDX-License-Identifier: Apache-2.0
/// Strides in elements, as problems and kernels' parameters hold them. The element stride is 1.
#pragma once

#include <cstdint>

#include "fovea/tensor.hpp"

namespace fovea::detail {

/// A tensor seen as (batch, row, head, element). Ragged tensors have batch 0.
struct RowStrides {
  std::int64_t batch = 0;
  std::int64_t row = 0;
  std::int64_t head = 0;
};

/// A bias [batch, head, row, key]: 0 along what it is broadcast to.
struct BiasStrides {
  std::int64_t batch = 0, head = 0, row = 0, key = 0;
};

/// A paged cache [blocks, page, kv_head, dim].
struct CacheStrides {
  std::int64_t block = 0;
  std::int64_t token = 0;
  std::int64_t head = 0;
};

constexpr CacheStrides cache_strides(const TensorDesc& desc) { return {desc.strides[0], desc.strides[1], desc.strides[2]}; }

}  // namespace fovea::detail
