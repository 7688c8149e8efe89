// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "op/attention/problem.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// A backward pass that makes sense; only validate() makes one. The base describes the forward pass; its lse is there.
struct AttentionBackwardProblem : AttentionProblem {
  RowStrides dout{}, dq{}, dk{}, dv{};
  std::int32_t dout_base_alignment = 0, dq_base_alignment = 0, dk_base_alignment = 0, dv_base_alignment = 0;
  std::int32_t dout_alignment = 0, dq_alignment = 0, dk_alignment = 0, dv_alignment = 0;  ///< of every row, in bytes
};

inline constexpr std::array kAttentionBackwardOptions{
    option::kRagged<AttentionBackwardProblem>,        option::kMaskLeft<AttentionBackwardProblem>,
    option::kMaskRight<AttentionBackwardProblem>,     option::kMaskTopLeft<AttentionBackwardProblem>,
    option::kSoftcap<AttentionBackwardProblem>,       option::kSink<AttentionBackwardProblem>,
    option::kBatchInvariant<AttentionBackwardProblem>};

}  // namespace fovea::detail
