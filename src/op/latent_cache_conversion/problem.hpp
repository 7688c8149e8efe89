// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "fovea/latent_attention.hpp"
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

Result<QuantizeLatentCacheProblem> validate_quantize(const LatentCacheConversionDesc& desc);
Result<DequantizeLatentCacheProblem> validate_dequantize(const LatentCacheConversionDesc& desc);

/// Pointers of run(), and where the host can read slot_mapping: every slot is -1 or inside the cache.
Result<void> check_args(const QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args);
Result<void> check_args(const DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args);
Result<void> check_slots(const LatentCacheConversionProblem& problem, const std::int64_t* slot_mapping);

}  // namespace fovea::detail
