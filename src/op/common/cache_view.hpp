// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "fovea/tensor.hpp"

namespace fovea::detail {

/// Strides in elements of a cache [blocks, page, kv_head, dim]; the element stride is 1.
struct CacheStrides {
  std::int64_t block = 0, token = 0, head = 0;
};

constexpr CacheStrides cache_strides(const TensorDesc& desc) { return {desc.strides[0], desc.strides[1], desc.strides[2]}; }

}  // namespace fovea::detail
