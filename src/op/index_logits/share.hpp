// SPDX-License-Identifier: Apache-2.0
/// Shares of stages of keys, as in Stream-K: a line, on which groups of queries lie by what they cost, is cut anywhere.
#pragma once

#include <algorithm>

namespace fovea::detail {

/// A group costs `stage_cost` for each of its stages, and 1 for itself. One without stages costs nothing.
constexpr int cost_of_group(int stages, int stage_cost) { return stages > 0 ? stages * stage_cost + 1 : 0; }

/// Stages of a group that lie before a place on the line. The group begins at `at`.
constexpr int stages_before(int place, int at, int stages, int stage_cost) {
  return std::min(std::max(place - at, 0) / stage_cost, stages);
}

}  // namespace fovea::detail
