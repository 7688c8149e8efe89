// SPDX-License-Identifier: Apache-2.0
/// Head dims past kMaxHeadDim, which few entries take.
#pragma once

#include "op/common/attention_core.hpp"

namespace fovea::detail {

inline constexpr std::int64_t kWidestHeadDim = 512;

/// Head dims that no entry takes.
std::optional<Error> decline_widest_head_dims(const AttentionCore& core);

}  // namespace fovea::detail
