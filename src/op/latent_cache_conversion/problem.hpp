// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "op/common/latent_cache.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// Rows on one side, slots of a packed cache on the other.
struct LatentCacheConversionProblem {
  DType dtype{};  ///< of the rows
  std::int64_t tokens = 0, row_stride = 0;
  std::int32_t rows_alignment = 0;
  bool rows_are_output = false;
  LatentCacheView cache{};
  ScaleRule rule{};
  Extent rows_extent{}, cache_extent{}, slots_extent{};
};

/// The two directions are different operations with one description.
struct QuantizeLatentCacheProblem : LatentCacheConversionProblem {};
struct DequantizeLatentCacheProblem : LatentCacheConversionProblem {};

inline constexpr std::array kQuantizeLatentCacheOptions{
    Option<QuantizeLatentCacheProblem>{"rule (exact)", [](const QuantizeLatentCacheProblem& p) { return p.rule == ScaleRule::exact; }}};
inline constexpr std::array<Option<DequantizeLatentCacheProblem>, 0> kDequantizeLatentCacheOptions{};

}  // namespace fovea::detail
