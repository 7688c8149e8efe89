// SPDX-License-Identifier: Apache-2.0
#include "op/common/tile_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

namespace fovea::detail {
namespace {

/// The work tiles of a CTA, in order.
std::vector<TileOrder::Place> tiles_of(const TileOrder& order, int cta) {
  std::vector<TileOrder::Place> tiles;
  for (int n = 0;; ++n) {
    const TileOrder::Place at = order.at(cta, n);
    if (at.head == TileOrder::kEnd.head) return tiles;
    if (at.head != TileOrder::kNone.head) tiles.push_back(at);
  }
}

TEST(TileOrder, EachTileOnce) {
  for (int q_tiles = 1; q_tiles <= 20; ++q_tiles)
    for (const int heads : {1, 2, 3, 5, 16, 64, 97})
      for (const int ctas : {1, 2, 7, 13, 132}) {
        for (const TileOrder::Costs costs :
             {TileOrder::Costs{}, {.even = true}, {.short_last = true}, {.even = true, .short_last = true}}) {
          const TileOrder order(q_tiles, heads, ctas, costs);
          std::set<std::pair<int, int>> seen;
          for (int cta = 0; cta < ctas; ++cta)
            for (const TileOrder::Place at : tiles_of(order, cta)) {
              ASSERT_TRUE(at.head < heads && at.q_tile >= 0 && at.q_tile < q_tiles);
              ASSERT_TRUE(seen.insert({at.head, at.q_tile}).second) << q_tiles << " " << heads << " " << ctas;
            }
          ASSERT_EQ(static_cast<int>(seen.size()), order.count());
        }
      }
}

/// Where all tiles cost the same, the short ones come last.
TEST(TileOrder, ShortTilesLast) {
  const TileOrder order(6, 256, 132, {.even = true, .short_last = true});
  for (int cta = 0; cta < 132; ++cta) {
    bool short_before = false;
    for (const TileOrder::Place at : tiles_of(order, cta)) {
      EXPECT_FALSE(short_before && at.q_tile < 5);
      short_before |= at.q_tile == 5;
    }
  }
}

TEST(TileOrder, PairsOfOneSequence) {
  for (int q_tiles = 1; q_tiles <= 9; ++q_tiles) {
    std::set<std::pair<int, int>> seen;
    for (int pair = 0; pair < 3 * ((q_tiles + 1) / 2); ++pair)
      for (const bool second : {false, true}) {
        const TileOrder::Place at = TileOrder::of_pair(pair, second, q_tiles);
        if (at.head < 0) continue;
        ASSERT_TRUE(seen.insert({at.head, at.q_tile}).second);
      }
    EXPECT_EQ(static_cast<int>(seen.size()), 3 * q_tiles);
  }
}

/// Under a causal mask, CTAs end within 2 % of each other at the sizes that are measured.
TEST(TileOrder, CausalWorkIsEven) {
  for (const auto& [q_tiles, heads] : {std::pair{128, 16}, {32, 64}, {8, 256}, {64, 64}}) {
    constexpr int kCtas = 132;
    const TileOrder order(q_tiles, heads, kCtas);
    double most = 0, all = 0;
    for (int cta = 0; cta < kCtas; ++cta) {
      double work = 0;
      for (const TileOrder::Place at : tiles_of(order, cta)) work += at.q_tile + 1.5;
      most = std::max(most, work);
      all += work;
    }
    EXPECT_GT(all / kCtas / most, 0.98) << q_tiles << " query tiles, " << heads << " heads";
  }
}

/// The same where the last tile costs 2/3 of what its place says: within 5 %.
TEST(TileOrder, CausalWorkIsEvenWithShortTiles) {
  for (const auto& [q_tiles, heads] : {std::pair{86, 16}, {22, 64}, {43, 64}}) {
    constexpr int kCtas = 132;
    const TileOrder order(q_tiles, heads, kCtas, {.short_last = true});
    double most = 0, all = 0;
    for (int cta = 0; cta < kCtas; ++cta) {
      double work = 0;
      for (const TileOrder::Place at : tiles_of(order, cta)) work += at.q_tile == q_tiles - 1 ? q_tiles / 1.5 : at.q_tile + 1.5;
      most = std::max(most, work);
      all += work;
    }
    EXPECT_GT(all / kCtas / most, 0.95) << q_tiles << " query tiles, " << heads << " heads";
  }
}

TEST(SectionOrder, EachTileOnce) {
  for (int q_tiles = 1; q_tiles <= 9; ++q_tiles)
    for (const int heads : {1, 2, 3, 5, 16, 64, 97})
      for (int section = 1; section <= heads; section *= 2) {
        const SectionOrder order(q_tiles, heads, section);
        std::set<std::pair<int, int>> seen;
        for (int i = 0; i < q_tiles * heads; ++i) {
          const TileOrder::Place at = order.at(i);
          ASSERT_TRUE(at.head >= 0 && at.head < heads && at.q_tile >= 0 && at.q_tile < q_tiles);
          ASSERT_TRUE(seen.insert({at.head, at.q_tile}).second) << q_tiles << " " << heads << " " << section;
        }
        for (const int past : {0, 1, 131}) EXPECT_EQ(order.at(q_tiles * heads + past).head, TileOrder::kEnd.head);
      }
}

/// Two sections, of which the second has all heads that are left: at least twice those of the first.
TEST(SectionOrder, LongestFirst) {
  const SectionOrder order(5, 14, 4);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(order.at(i).head < 4 && order.at(i).q_tile == 4 - i / 4) << i;
  for (int i = 20; i < 70; ++i) EXPECT_TRUE(order.at(i).head >= 4 && order.at(i).q_tile == 4 - (i - 20) / 10) << i;
}

/// CTAs that draw the next tile whenever one ends, end within 3 % of each other at the sizes that are measured.
TEST(SectionOrder, CausalWorkIsEven) {
  constexpr int kCtas = 132;
  struct Size {
    int q_tiles, heads, section;
  };
  for (const auto& [q_tiles, heads, section] : {Size{22, 64, 16}, {22, 128, 32}, {43, 64, 32}, {86, 16, 4}}) {
    const SectionOrder order(q_tiles, heads, section);
    std::vector<double> ends(kCtas);
    double all = 0;
    for (int i = 0; i < q_tiles * heads; ++i) {
      const double cost = 1.5 * order.at(i).q_tile + 3;  // in key tiles of 128, by query tiles of 192
      *std::min_element(ends.begin(), ends.end()) += cost;
      all += cost;
    }
    EXPECT_GT(all / kCtas / *std::max_element(ends.begin(), ends.end()), 0.97) << q_tiles << " query tiles, " << heads << " heads";
  }
}

}  // namespace
}  // namespace fovea::detail
