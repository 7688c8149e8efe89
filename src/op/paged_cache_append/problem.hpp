// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "fovea/tensor.hpp"
#include "op/common/cache_view.hpp"
#include "op/common/extent.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// One side (K or V) of an append.
struct AppendSide {
  std::int64_t head_dim = 0;
  std::int64_t row_stride = 0, head_stride = 0;  ///< of the new rows
  CacheStrides cache{};
  std::optional<ScaleDesc> scale{};
  std::int32_t rows_alignment = 0, cache_alignment = 0;  ///< bytes, of the pointers
};

struct PagedCacheAppendProblem {
  DType dtype{}, cache_dtype{};
  std::int64_t tokens = 0, kv_heads = 0, blocks = 0, page = 0;
  AppendSide k{}, v{};
  Extents extents{};
};

inline constexpr std::array kPagedCacheAppendOptions{
    Option<PagedCacheAppendProblem>{"k_scale", [](const PagedCacheAppendProblem& p) { return p.k.scale.has_value(); }},
    Option<PagedCacheAppendProblem>{"v_scale", [](const PagedCacheAppendProblem& p) { return p.v.scale.has_value(); }}};

}  // namespace fovea::detail
