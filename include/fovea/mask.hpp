// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "fovea/standard.hpp"

namespace fovea {

/// Where the band's diagonal starts: query 0 against key 0, or the last query against the last key.
enum class Anchor : std::uint8_t { top_left, bottom_right };

inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// Query row i sees key j iff `-left <= j - (i + offset) <= right`, with offset = seq_k - seq_q (bottom_right) or 0 (top_left).
/// Either bound may be negative (it then excludes the diagonal).
struct BandMask {
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  Anchor anchor = Anchor::bottom_right;
};

/// Every key up to and including the query's own position.
constexpr BandMask causal(Anchor anchor = Anchor::bottom_right) { return {.right = 0, .anchor = anchor}; }

/// Causal, and at most `tokens` keys back, the query's own included (Hugging Face's `sliding_window`).
/// A window of 0 tokens or fewer has no key.
constexpr BandMask sliding_window(std::int64_t tokens) { return {.left = std::max(tokens, -kUnbounded) - 1, .right = 0}; }

}  // namespace fovea
