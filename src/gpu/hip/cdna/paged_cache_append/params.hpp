// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "op/common/division.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::cdna::append {

inline constexpr int kThreads = 256;

/// One side, K or V.
struct Side {
  const void* rows = nullptr;    // (token, kv_head, dim)
  void* cache = nullptr;         // (block, page, kv_head, dim)
  const float* scale = nullptr;  // (kv_head) at its stride, or null
  std::int64_t row_stride = 0, head_stride = 0, scale_stride = 0;
  detail::CacheStrides strides{};
  int head_dim = 0;
};

struct Params {
  Side sides[2];                               // K, V
  const std::int64_t* slot_mapping = nullptr;  // (token)
  std::int64_t tokens = 0, slots = 0, page = 1;
  int kv_heads = 0;
};

}  // namespace fovea::gpu::cdna::append
