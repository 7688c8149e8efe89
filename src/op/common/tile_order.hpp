// SPDX-License-Identifier: Apache-2.0
/// Which work tiles of dense attention a persistent CTA takes, in which order.
///
/// Under a causal mask a query tile costs what it sees: tile m of a head m + 1 times the first. Tiles m and q_tiles - 1 - m together cost
/// the same for every m, so CTAs take such pairs in rounds, head by head, which keeps the keys and values of few heads in L2. A last round
/// that not all CTAs take part in would be lost: the tiles of the last full round and of what follows it are dealt out one by one instead,
/// longest first, every other round backwards.
///
/// Where all query tiles cost the same, CTAs take them head by head. A last tile with few rows costs less than its place says: it counts
/// among the tiles of its cost, and comes after all others where these cost the same.
#pragma once

#include <algorithm>

namespace fovea::detail {

/// The work tiles of a batch: `heads` heads (of all sequences) of `q_tiles` query tiles.
class TileOrder {
 public:
  struct Place {
    int head = 0, q_tile = 0;
  };
  static constexpr Place kNone{-1, 0};  ///< nothing in this turn, but later
  static constexpr Place kEnd{-2, 0};

  /// The known costs of a head's query tiles.
  struct Costs {
    bool even = false;        ///< all the same; else each costs more than the one before
    bool short_last = false;  ///< the last one has so few rows that it costs some 2/3 of what its place says
  };

  constexpr TileOrder() = default;
  constexpr TileOrder(int q_tiles, int heads, int ctas, Costs costs = {false, false})
      : q_tiles_(q_tiles), heads_(heads), ctas_(ctas), even_(costs.even), short_rank_(costs.short_last ? 2 * q_tiles / 3 : q_tiles) {
    const int pairs = heads * half();
    rounds_ = std::max(pairs / ctas - 1, 0);
    const int dealt = rounds_ * ctas;  // pairs
    tail_head_ = q_tiles == 0 ? heads : dealt / half();
    tail_pair_ = q_tiles == 0 ? 0 : dealt % half();
  }

  constexpr int count() const { return q_tiles_ * heads_; }

  /// The work of `cta` in its n-th turn.
  constexpr Place at(int cta, int n) const {
    if (even_) return of_even(n * ctas_ + cta);
    Place place = in_order(cta, n);
    if (place.head >= 0) place.q_tile = of_rank(place.q_tile);
    return place;
  }

  /// One tile of a pair: the one with more keys, then the other, which the middle pair of an odd number has not.
  static constexpr Place of_pair(int pair, bool second, int q_tiles) {
    const int half = (q_tiles + 1) / 2, head = pair / half, inside = pair % half;
    if (!second) return {head, q_tiles - 1 - inside};
    return inside == q_tiles - 1 - inside ? kNone : Place{head, inside};
  }

 private:
  constexpr int half() const { return (q_tiles_ + 1) / 2; }

  constexpr Place of_even(int index) const {
    const int whole = short_rank_ < q_tiles_ ? q_tiles_ - 1 : q_tiles_;
    if (index < heads_ * whole) return {index / whole, index % whole};
    index -= heads_ * whole;
    return whole < q_tiles_ && index < heads_ ? Place{index, whole} : kEnd;
  }

  /// The query tile that costs the rank-th least.
  constexpr int of_rank(int rank) const {
    if (rank < short_rank_) return rank;
    return rank == short_rank_ ? q_tiles_ - 1 : rank - 1;
  }

  /// By rank.
  constexpr Place in_order(int cta, int n) const {
    if (n < 2 * rounds_) return of_pair(n / 2 * ctas_ + cta, n % 2 == 1, q_tiles_);
    const int round = n - 2 * rounds_;
    return of_tail(round * ctas_ + (round % 2 == 0 ? cta : ctas_ - 1 - cta));
  }

  /// The index-th of the tail's tiles, those with most keys first. All of its heads have all tiles, but for the first, whose outer
  /// tail_pair_ pairs have been dealt.
  constexpr Place of_tail(int index) const {
    const int whole = std::max(heads_ - tail_head_ - 1, 0);  // heads with all tiles
    const int partial = tail_head_ < heads_ ? 1 : 0, inner = std::max(q_tiles_ - 2 * tail_pair_, 0);
    const int outer = tail_pair_ * whole, middle = inner * (whole + partial);
    if (index < outer) return {tail_head_ + 1 + index % whole, q_tiles_ - 1 - index / whole};
    index -= outer;
    if (index < middle) return {tail_head_ + index % (whole + partial), q_tiles_ - 1 - tail_pair_ - index / (whole + partial)};
    index -= middle;
    if (index < outer) return {tail_head_ + 1 + index % whole, tail_pair_ - 1 - index / whole};
    return kEnd;
  }

  int q_tiles_ = 0, heads_ = 0, ctas_ = 1;
  bool even_ = false;
  int short_rank_ = 0;                 // of a head's last tile where that is short, else past all
  int rounds_ = 0;                     // of pairs
  int tail_head_ = 0, tail_pair_ = 0;  // where the tail begins
};

/// The tiles of `heads` heads by tickets: heads in sections, whose keys and values fit L2, and in each the
/// tiles with most keys first. The last two sections are one, else long tiles would begin late.
class SectionOrder {
 public:
  constexpr SectionOrder() = default;
  constexpr SectionOrder(int q_tiles, int heads, int section)
      : q_tiles_(q_tiles), heads_(heads), section_(section), last_((std::max(heads / section, 2) - 2) * section) {}

  constexpr TileOrder::Place at(int index) const {
    if (index >= q_tiles_ * heads_) return TileOrder::kEnd;
    const int first = std::min(index / (section_ * q_tiles_) * section_, last_);
    const int inside = index - first * q_tiles_, count = first == last_ ? heads_ - last_ : section_;
    return {first + inside % count, q_tiles_ - 1 - inside / count};
  }

 private:
  int q_tiles_ = 0, heads_ = 0;
  int section_ = 1;  // heads
  int last_ = 0;     // first head of the last section
};

}  // namespace fovea::detail
