// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "fovea/paged_attention.hpp"
#include "fovea/tensor.hpp"
#include "op/common/extent.hpp"
#include "op/common/option.hpp"
#include "op/common/strides.hpp"

namespace fovea::detail {

/// One side (K or V) of an append.
struct AppendSide {
  std::int64_t head_dim = 0;
  std::int64_t row_stride = 0, head_stride = 0;  ///< of the new rows
  CacheStrides cache{};
  std::optional<ScaleDesc> scale{};
  KvFormat format = KvFormat::rows;
  std::optional<TensorDesc> scale_cache{};               ///< where the format has scales
  std::int32_t rows_alignment = 0, cache_alignment = 0;  ///< bytes, of the pointers
};

struct PagedCacheAppendProblem {
  DType dtype{}, cache_dtype{};  ///< cache_dtype is that of plain rows, if K or V has such
  std::int64_t tokens = 0, kv_heads = 0, blocks = 0, page = 0;
  AppendSide k{}, v{};
  Extents extents{};
};

inline constexpr std::array kPagedCacheAppendOptions{
    Option<PagedCacheAppendProblem>{"k_scale", [](const PagedCacheAppendProblem& p) { return p.k.scale.has_value(); }},
    Option<PagedCacheAppendProblem>{"v_scale", [](const PagedCacheAppendProblem& p) { return p.v.scale.has_value(); }},
    Option<PagedCacheAppendProblem>{"k_format", [](const PagedCacheAppendProblem& p) { return p.k.format != KvFormat::rows; }},
    Option<PagedCacheAppendProblem>{"v_format", [](const PagedCacheAppendProblem& p) { return p.v.format != KvFormat::rows; }}};

/// The only maker of a PagedCacheAppendProblem.
Result<PagedCacheAppendProblem> validate(const PagedCacheAppendDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);

/// Where the host can read slot_mapping: every slot is -1 or inside the cache.
Result<void> check_slots(const PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);

}  // namespace fovea::detail
