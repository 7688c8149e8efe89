// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "op/common/attention_core.hpp"
#include "op/common/extent.hpp"

namespace fovea::detail {

/// A dense attention that makes sense; only validate() makes one.
struct AttentionProblem : AttentionCore {
  bool ragged = false;
  std::int64_t total_k = 0;  ///< rows of k and v over the whole batch
  RowStrides k{}, v{};
  std::optional<ScaleDesc> q_scale{};
  Extents extents{};
};

}  // namespace fovea::detail
