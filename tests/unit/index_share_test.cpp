// SPDX-License-Identifier: Apache-2.0
/// Shares of an indexer's stages: wherever the line of costs is cut, each stage is in one share, and shares are in order.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "op/index_logits/share.hpp"

namespace fovea::detail {
namespace {

constexpr int kMost = std::numeric_limits<int>::max();

/// The share of each stage, by a walk of every share over all groups.
std::vector<int> deal(const std::vector<int>& stages, const std::vector<int>& cuts, int stage_cost) {
  std::vector<int> first(1, 0);
  for (const int count : stages) first.push_back(first.back() + count);
  std::vector<int> owners(first.back(), -1);
  for (std::size_t share = 0; share + 1 < cuts.size(); ++share) {
    int at = 0;
    for (std::size_t group = 0; group < stages.size(); ++group) {
      const int from = stages_before(cuts[share], at, stages[group], stage_cost);
      const int to = stages_before(cuts[share + 1], at, stages[group], stage_cost);
      for (int stage = from; stage < to; ++stage) {
        int& owner = owners[first[group] + stage];
        EXPECT_EQ(owner, -1) << "a stage in two shares";
        owner = static_cast<int>(share);
      }
      at += cost_of_group(stages[group], stage_cost);
    }
  }
  return owners;
}

TEST(IndexShare, EveryStageIsInOneShare) {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    const int shares = 1 + static_cast<int>(random() % 140), stage_cost = 1 + static_cast<int>(random() % 33);
    std::vector<int> stages(random() % 40);
    for (int& count : stages) count = random() % 3 == 0 ? 0 : static_cast<int>(random() % 70);
    int total = 0;
    for (const int count : stages) total += cost_of_group(count, stage_cost);
    std::vector<int> cuts{0, total};
    while (static_cast<int>(cuts.size()) <= shares) cuts.push_back(static_cast<int>(random() % (total + 1)));
    std::sort(cuts.begin(), cuts.end());
    const std::vector<int> owners = deal(stages, cuts, stage_cost);
    ASSERT_TRUE(std::is_sorted(owners.begin(), owners.end()));
    ASSERT_TRUE(owners.empty() || owners.front() >= 0) << "a stage in no share";
  }
}

TEST(IndexShare, Ends) {
  EXPECT_EQ(cost_of_group(0, 33), 0);
  EXPECT_EQ(cost_of_group(3, 2), 7);
  EXPECT_EQ(stages_before(kMost, 0, 7, 2), 7);
  EXPECT_EQ(stages_before(5, 9, 7, 2), 0);
  EXPECT_EQ(stages_before(9, 9, 7, 2), 0);
  EXPECT_EQ(stages_before(10, 9, 7, 2), 0);
  EXPECT_EQ(stages_before(11, 9, 7, 2), 1);
}

}  // namespace
}  // namespace fovea::detail
