// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "op/common/checks.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::detail {

Result<QuantizeQkInt8Problem> validate(const QuantizeQkInt8Desc& desc, const PlanOptions& options);
Result<QuantizeVProblem> validate(const QuantizeVDesc& desc, const PlanOptions& options);
Result<QuantizedAttentionProblem> validate(const QuantizedAttentionDesc& desc, const PlanOptions& options);
Result<QuantizeAndAttendProblem> validate(const QuantizeAndAttendDesc& desc, const PlanOptions& options);

Result<void> check_args(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
Result<void> check_args(const QuantizeVProblem& problem, const QuantizeVArgs& args);
Result<void> check_args(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args);
Result<void> check_args(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args);

Result<void> check_lengths(const QuantizeQkInt8Problem& problem, const QuantizeQkInt8Args& args);
Result<void> check_lengths(const QuantizeVProblem& problem, const QuantizeVArgs& args);
Result<void> check_lengths(const QuantizedAttentionProblem& problem, const QuantizedAttentionArgs& args);
Result<void> check_lengths(const QuantizeAndAttendProblem& problem, const QuantizeAndAttendArgs& args);

/// Head dims outside the contract; the reason to decline with.
std::optional<Error> decline_int8_head_dims(const QuantizeQkInt8Problem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizeVProblem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizedAttentionProblem& problem);
std::optional<Error> decline_int8_head_dims(const QuantizeAndAttendProblem& problem);

}  // namespace fovea::detail
