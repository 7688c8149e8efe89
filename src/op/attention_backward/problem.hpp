// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "op/attention/problem.hpp"

namespace fovea::detail {

/// A backward pass that makes sense; only validate() makes one. The base describes the forward pass; its lse is there.
struct AttentionBackwardProblem : AttentionProblem {
  RowStrides dout{}, dq{}, dk{}, dv{};
  std::int32_t dout_base_alignment = 0, dq_base_alignment = 0, dk_base_alignment = 0, dv_base_alignment = 0;
};

}  // namespace fovea::detail
