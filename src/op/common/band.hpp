// SPDX-License-Identifier: Apache-2.0
/// Every mask of the library is one band; causal, window, both anchors and the ragged tail are values of it, not code paths.
#pragma once

#include <algorithm>
#include <cstdint>

#include "fovea/mask.hpp"
#include "op/common/division.hpp"

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
  const std::int64_t last = some.end > some.begin ? ceil_div(some.end, tile) : first;
  const std::int64_t full_first = ceil_div(every_begin, tile);
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

inline constexpr int kNarrowLimit = 1 << 30;

/// A mask whose bounds are so far away at most that no sum overflows.
struct NarrowMask {
  int left = kNarrowLimit, right = kNarrowLimit;
  bool bottom_right = true;

  constexpr NarrowMask() = default;
  constexpr explicit NarrowMask(const BandMask& mask)
      : left(narrow(mask.left)), right(narrow(mask.right)), bottom_right(mask.anchor == Anchor::bottom_right) {}

 private:
  static constexpr int narrow(std::int64_t bound) { return static_cast<int>(std::clamp<std::int64_t>(bound, -kNarrowLimit, kNarrowLimit)); }
};

/// Keys and key tiles that some of a sequence's query rows see: keys [begin, end), tiles [first, last), of these without a mask
/// [full_first, full_last).
struct NarrowTiles {
  int begin = 0, end = 0;
  int first = 0, full_first = 0, full_last = 0, last = 0;
};

struct NarrowBand {
  int low = 0, high = 0, seq_k = 0;

  constexpr NarrowBand(const NarrowMask& mask, int seq_q, int seq_k_) : seq_k(seq_k_) {
    const int offset = mask.bottom_right ? seq_k - seq_q : 0;
    low = clamp(offset - mask.left, -seq_q - 1, seq_k + 1);
    high = clamp(offset + mask.right, -seq_q - 1, seq_k + 1);
  }

  /// In tiles of 2^log2_tile keys. Requires 0 <= q_begin < q_end.
  constexpr NarrowTiles tiles(int log2_tile, int q_begin, int q_end) const {
    NarrowTiles seen;
    if (low <= high) {
      seen.begin = clamp(q_begin + low, 0, seq_k);
      seen.end = clamp(q_end + high, seen.begin, seq_k);
    }
    const int every_begin = clamp(q_end - 1 + low, seen.begin, seen.end);
    const int every_end = clamp(q_begin + high + 1, every_begin, seen.end);
    seen.first = down(seen.begin, log2_tile);
    seen.last = seen.end > seen.begin ? up(seen.end, log2_tile) : seen.first;
    seen.full_first = up(every_begin, log2_tile);
    seen.full_last = down(every_end, log2_tile);
    if (seen.full_first >= seen.full_last) seen.full_first = seen.full_last = seen.last;
    return seen;
  }

 private:
  static constexpr int clamp(int x, int low, int high) { return std::min(std::max(x, low), high); }
  static constexpr int down(int x, int shift) { return x >> shift; }
  static constexpr int up(int x, int shift) { return (x + (1 << shift) - 1) >> shift; }
};

}  // namespace fovea::detail
