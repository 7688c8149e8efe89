// SPDX-License-Identifier: Apache-2.0
/// What band.hpp says, in 32 bits, for kernels where one warp finds its work before all others may start. For fewer than 2^30 queries and
/// keys of a sequence. A test compares the two.
#pragma once

#include <algorithm>
#include <cstdint>

#include "op/common/band.hpp"

namespace fovea::detail {

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
