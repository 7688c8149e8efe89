// SPDX-License-Identifier: Apache-2.0
/// Every mask of the library is one band; causal, window, both anchors and the ragged tail are values of it, not code paths.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fovea/mask.hpp"

namespace fovea::detail {

/// Query i sees key j iff low <= j - i <= high (and 0 <= j < seq_k).
struct Band {
  std::int64_t low = 0, high = 0;
};

/// Half-open range of keys.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
  constexpr std::int64_t size() const { return end - begin; }
};

/// Key tiles that one query tile visits: [first, last). Tiles in [full_first, full_last) need no mask.
struct KvTiles {
  std::int64_t first = 0, full_first = 0, full_last = 0, last = 0;
};

/// The band of one sequence, made finite so that no later sum can overflow.
constexpr Band make_band(const BandMask& mask, std::int64_t seq_q, std::int64_t seq_k) {
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  const std::int64_t offset = mask.anchor == Anchor::bottom_right ? seq_k - seq_q : 0;
  const auto finite = [&](std::int64_t bound) { return std::clamp(bound, -seq_q - 1, seq_k + 1); };
  return {finite(offset - std::clamp(mask.left, -kFar, kFar)), finite(offset + std::clamp(mask.right, -kFar, kFar))};
}

/// Keys that query rows [q_begin, q_end) see between them. Requires q_begin < q_end.
constexpr KeyRange keys_seen_by_some(Band band, std::int64_t q_begin, std::int64_t q_end, std::int64_t seq_k) {
  if (band.low > band.high) return {};
  const std::int64_t begin = std::clamp(q_begin + band.low, std::int64_t{0}, seq_k);
  return {begin, std::clamp(q_end - 1 + band.high + 1, begin, seq_k)};
}

/// Keys that one query row sees.
constexpr KeyRange keys_seen_by(Band band, std::int64_t row, std::int64_t seq_k) { return keys_seen_by_some(band, row, row + 1, seq_k); }

/// Requires 0 <= q_begin < q_end, seq_k >= 0, tile > 0.
constexpr KvTiles kv_tiles(Band band, std::int64_t q_begin, std::int64_t q_end, std::int64_t seq_k, std::int64_t tile) {
  const KeyRange some = keys_seen_by_some(band, q_begin, q_end, seq_k);
  const std::int64_t every_begin = std::clamp(q_end - 1 + band.low, some.begin, some.end);
  const std::int64_t every_end = std::clamp(q_begin + band.high + 1, every_begin, some.end);

  const std::int64_t first = some.begin / tile;
  const std::int64_t last = some.end > some.begin ? (some.end + tile - 1) / tile : first;
  const std::int64_t full_first = (every_begin + tile - 1) / tile;
  const std::int64_t full_last = every_end / tile;
  if (full_first >= full_last) return {first, last, last, last};  // every tile is an edge tile
  return {first, full_first, full_last, last};
}

/// Query-key pairs that are visible: what a kernel has to compute.
constexpr std::int64_t visible_pairs(Band band, std::int64_t seq_q, std::int64_t seq_k) {
  std::int64_t pairs = 0;
  for (std::int64_t row = 0; row < seq_q; ++row) pairs += keys_seen_by(band, row, seq_k).size();
  return pairs;
}

}  // namespace fovea::detail
