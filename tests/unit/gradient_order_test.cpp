// SPDX-License-Identifier: Apache-2.0
#include "op/common/gradient_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace fovea::detail {
namespace {

/// Whether a row of the query tile sees a key of the key tile, pair by pair.
bool meet(const GradientOrder& order, int key_tile, int query_tile) {
  for (int i = query_tile * order.query_rows; i < std::min((query_tile + 1) * order.query_rows, order.seq_q); ++i)
    for (int j = key_tile * order.key_rows; j < std::min((key_tile + 1) * order.key_rows, order.seq_k); ++j)
      if (order.low <= j - i && j - i <= order.high) return true;
  return false;
}

template <class F>
void for_each_order(F&& f) {
  for (const int seq_q : {1, 4, 9, 17})
    for (const int seq_k : {1, 5, 12, 23})
      for (const auto& [low, high] : {std::pair{-100, 100}, {-100, 0}, {-100, seq_k - seq_q}, {-3, 2}, {2, 6}, {-9, -4}, {3, 1}})
        for (const int group : {1, 2, 3, 64}) f(GradientOrder{seq_q, seq_k, low, high, 2, 4, group});
}

TEST(GradientOrder, StepsAreTheQueryTilesThatMeetTheKeyTile) {
  for_each_order([](const GradientOrder& order) {
    for (int n = 0; n < order.key_tiles(); ++n) {
      std::set<int> expected, visited;
      for (int m = 0; m < order.query_tiles(); ++m)
        if (meet(order, n, m)) expected.insert(m);
      const int steps = order.query_tiles_of(n).size();
      for (int step = 0; step < steps; ++step) visited.insert(order.query_tile_at(n, step));
      EXPECT_EQ(visited, expected);
      EXPECT_EQ(steps, static_cast<int>(expected.size()));
    }
  });
}

TEST(GradientOrder, RanksCountTheKeyTilesOfAQueryTile) {
  for_each_order([](const GradientOrder& order) {
    for (int m = 0; m < order.query_tiles(); ++m) {
      std::set<int> ranks;
      int visitors = 0;
      for (int n = 0; n < order.key_tiles(); ++n) {
        if (!meet(order, n, m)) continue;
        ranks.insert(order.rank(n, m));
        ++visitors;
      }
      EXPECT_EQ(order.key_tiles_of(m).size(), visitors);
      EXPECT_EQ(static_cast<int>(ranks.size()), visitors);
      if (visitors == 0) continue;
      EXPECT_EQ(*ranks.begin(), 0);
      EXPECT_EQ(*ranks.rbegin(), visitors - 1);
    }
  });
}

/// Plays the CTAs: at each tick, each of the `slots` that are occupied takes a step if its turn has come. Returns the ticks, or -1.
int ticks(const GradientOrder& order, int slots) {
  std::vector<int> turns(static_cast<std::size_t>(order.query_tiles()));
  struct Walk {
    int key_tile, step;
  };
  std::vector<Walk> walks;
  int next = 0, count = 0;
  const auto ended = [&](const Walk& walk) { return walk.step == order.query_tiles_of(walk.key_tile).size(); };
  for (;; ++count) {
    std::erase_if(walks, ended);
    while (next < order.key_tiles() && static_cast<int>(walks.size()) < slots) walks.push_back({next++, 0});
    if (walks.empty()) return count;
    const std::vector<int> before = turns;
    bool moved = std::any_of(walks.begin(), walks.end(), ended);
    for (Walk& walk : walks) {
      if (ended(walk)) continue;
      const auto m = static_cast<std::size_t>(order.query_tile_at(walk.key_tile, walk.step));
      if (before[m] != order.rank(walk.key_tile, static_cast<int>(m))) continue;
      ++turns[m];
      ++walk.step;
      moved = true;
    }
    if (!moved) return -1;
  }
}

TEST(GradientOrder, EndsWithAsManySlotsAsAGroupHas) {
  for_each_order([](const GradientOrder& order) {
    const int least = order.full() ? order.group : 1;
    for (const int slots : {least, least + 1, 2 * least + 1}) EXPECT_GE(ticks(order, slots), 0);
  });
}

TEST(GradientOrder, NobodyWaitsWhereAllWalkInStep) {
  const GradientOrder full{4096, 4096, -4096, 4096}, causal{4096, 4096, -4096, 0};
  EXPECT_EQ(ticks(full, 128), full.query_tiles());
  EXPECT_LE(ticks(causal, 8), 160);  // 1056 steps in 8 slots take 132
}

}  // namespace
}  // namespace fovea::detail
