// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/latent_attention.hpp"
#include "op/latent_cache_conversion/problem.hpp"

namespace fovea::detail {

Result<QuantizeLatentCacheProblem> validate_quantize(const LatentCacheConversionDesc& desc);
Result<DequantizeLatentCacheProblem> validate_dequantize(const LatentCacheConversionDesc& desc);

/// Pointers of run(), and where the host can read slot_mapping: every slot is -1 or inside the cache.
Result<void> check_args(const QuantizeLatentCacheProblem& problem, const QuantizeLatentCacheArgs& args);
Result<void> check_args(const DequantizeLatentCacheProblem& problem, const DequantizeLatentCacheArgs& args);
Result<void> check_slots(const LatentCacheConversionProblem& problem, const std::int64_t* slot_mapping);

}  // namespace fovea::detail
