// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "op/common/attention_core.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// A dense attention that makes sense; only validate() makes one.
struct AttentionProblem : AttentionCore {
  bool ragged = false;
  std::int64_t total_k = 0;  ///< rows of k and v over the whole batch
  RowStrides k{}, v{};
  std::optional<ScaleDesc> q_scale{};
};

/// An implementation handles each of these by name, or planning declines for it the calls that use one.
inline constexpr std::array kAttentionOptions{
    option::kRagged<AttentionProblem>,      option::kMaskLeft<AttentionProblem>,      option::kMaskRight<AttentionProblem>,
    option::kMaskTopLeft<AttentionProblem>, option::kSoftcap<AttentionProblem>,       option::kSink<AttentionProblem>,
    option::kLse<AttentionProblem>,         option::kQScale<AttentionProblem>,        option::kKScale<AttentionProblem>,
    option::kVScale<AttentionProblem>,      option::kBatchInvariant<AttentionProblem>};

}  // namespace fovea::detail
