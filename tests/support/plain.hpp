// SPDX-License-Identifier: Apache-2.0
/// The plain same-precision implementations whose error sets the tolerance: f32 arithmetic, operands and results rounded where
/// 16-bit hardware rounds them, no tiles, no tricks.
#pragma once

#include <vector>

#include "bound_case.hpp"

namespace fovea::check {

/// out [flat_rows, head, dv], rounded to the output's dtype. Only rows in `wanted` [flat_rows] are computed.
std::vector<float> plain_attention(const BoundCase& bound, const std::vector<char>& wanted);
std::vector<float> plain_merge_states(const BoundCase& bound);

}  // namespace fovea::check
