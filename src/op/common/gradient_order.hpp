// SPDX-License-Identifier: Apache-2.0
/// The order of a backward pass over one sequence and head. A CTA has a key tile and walks through the query tiles that see it. The
/// gradient of a query tile is a sum over key tiles, added in one fixed order: that in which the CTAs come by if they walk in step.
///
/// Where every query sees every key, CTAs begin at query tiles apart from each other, walk up and then around. Under a band, they walk down
/// from their last query tile, and lower key tiles come by first.
///
/// Key tiles must begin in the order of their numbers. Under a band, a key tile waits for lower ones alone. Else it also waits for others
/// of its group, so `group` of them at a time are enough for all to end.
#pragma once

#include <algorithm>

#include "op/common/division.hpp"

namespace fovea::detail {

struct GradientOrder {
  int seq_q = 0, seq_k = 0;
  int low = 0, high = 0;                             ///< query i sees key j iff low <= j - i <= high; no more than 2^30 in magnitude
  int query_rows = 64, key_rows = 128, group = 128;  ///< tiles of queries, times a group, are below 2^32

  struct Range {
    int first = 0, last = 0;  ///< [first, last)
    constexpr int size() const { return last - first; }
  };

  constexpr int query_tiles() const { return ceil_div(seq_q, query_rows); }
  constexpr int key_tiles() const { return ceil_div(seq_k, key_rows); }
  /// Every query sees every key.
  constexpr bool full() const { return low <= 1 - seq_q && high >= seq_k - 1; }

  /// Query tiles with a row that sees a key of this key tile.
  constexpr Range query_tiles_of(int key_tile) const {
    const int begin = key_tile * key_rows, end = std::min(begin + key_rows, seq_k);
    return tiles(begin - high, end - 1 - low, seq_q, query_rows);
  }
  /// Key tiles with a key that a row of this query tile sees: those that have this query tile among theirs.
  constexpr Range key_tiles_of(int query_tile) const {
    const int begin = query_tile * query_rows, end = std::min(begin + query_rows, seq_q);
    return tiles(begin + low, end - 1 + high, seq_k, key_rows);
  }

  /// The query tile of a step, of query_tiles_of(key_tile).size() steps.
  constexpr int query_tile_at(int key_tile, int step) const {
    const Range range = query_tiles_of(key_tile);
    if (!full()) return range.last - 1 - step;
    const int tile = start(key_tile) + step;
    return tile < range.last ? tile : tile - range.size();
  }

  /// How many key tiles add to the query tile before this one does.
  constexpr int rank(int key_tile, int query_tile) const {
    if (!full()) return key_tile - key_tiles_of(query_tile).first;
    const Range within = group_of(key_tile);
    const int newest = first_of_group(within, query_tile);
    return key_tile <= newest ? within.first + newest - key_tile : newest + within.last - key_tile;
  }

  /// Key tiles that wait for each other where every query sees every key.
  constexpr Range group_of(int key_tile) const {
    const int first = key_tile / group * group;
    return {first, std::min(first + group, key_tiles())};
  }
  /// The first of the group that comes by the query tile. Those below it follow, then those above from the last one down.
  constexpr int first_of_group(Range within, int query_tile) const {
    const auto size = static_cast<unsigned>(within.size());
    const unsigned passed = (static_cast<unsigned>(query_tile) + 1) * size - 1;
    return within.first + static_cast<int>(std::min(passed / static_cast<unsigned>(query_tiles()), size - 1));
  }

 private:
  /// Tiles of `rows` elements with one of [begin, last] that is below `count`.
  constexpr Range tiles(int begin, int last, int count, int rows) const {
    begin = std::max(begin, 0);
    last = std::min(last, count - 1);
    if (low > high || begin > last) return {};
    return {begin / rows, last / rows + 1};
  }
  /// Where a key tile begins among all query tiles.
  constexpr int start(int key_tile) const {
    const Range within = group_of(key_tile);
    return static_cast<int>(static_cast<unsigned>(key_tile - within.first) * static_cast<unsigned>(query_tiles()) /
                            static_cast<unsigned>(within.size()));
  }
};

}  // namespace fovea::detail
