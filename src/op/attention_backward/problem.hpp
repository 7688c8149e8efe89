// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/attention_backward.hpp"
#include "op/attention/problem.hpp"

namespace fovea::detail {

/// A backward pass that makes sense; only validate() makes one. The base describes the forward pass; its lse is there.
struct AttentionBackwardProblem : AttentionProblem {
  RowStrides dout{}, dq{}, dk{}, dv{}, dlse{};
  BiasStrides dbias{};          ///< 0 along extents of 1
  BiasStrides dbias_extents{};  ///< the shape of the bias
  std::int64_t dbias_elements = 0;
  bool has_dlse = false, has_dbias = false;
  bool deterministic = false;  ///< dq too must have the same bits from run to run
  Extents gradient_extents{};  ///< those of the base are of the forward pass
  std::int32_t dout_base_alignment = 0, dq_base_alignment = 0, dk_base_alignment = 0, dv_base_alignment = 0;
  std::int32_t dbias_alignment = 0;                                                       ///< of run()'s pointer
  std::int32_t dout_alignment = 0, dq_alignment = 0, dk_alignment = 0, dv_alignment = 0;  ///< of every row, in bytes
};

/// The weights of lse exclude the sink: they are exp(total - lse) times those of out, with the denominator exp(total). So that this factor
/// is finite, a sink counts as lse + kMostSinkOverLse at most in a call with dlse. Such a row has 1e-26 of out's gradient, not none. From
/// this magnitude of lse on, f32 does not hold the sum, and such a row has no gradient.
inline constexpr float kMostSinkOverLse = 60, kLseWithoutSum = 1 << 20;

/// The only maker of an AttentionBackwardProblem.
Result<AttentionBackwardProblem> validate(const AttentionBackwardDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and outputs apart from all else. Looks at no data.
Result<void> check_args(const AttentionBackwardProblem& problem, const AttentionBackwardArgs& args);

}  // namespace fovea::detail
