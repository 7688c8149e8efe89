// SPDX-License-Identifier: Apache-2.0
/// The split schedule against the plain statement of what it promises: every tile of every sequence once, equal parts, slots of their own.
#include "op/common/split_schedule.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

namespace fovea::detail {
namespace {

struct Batch {
  std::vector<int> tiles{};
  int parts = 1, overhead = 0;
  bool whole = false;
  int length = 0;  // of a part; 0: what makes the parts equal
};

struct Scheduled {
  explicit Scheduled(const Batch& batch) {
    prefix.push_back(0);
    for (const int tiles : batch.tiles) prefix.push_back(prefix.back() + tiles + batch.overhead);
    const int length = batch.length > 0 ? batch.length : std::max((prefix.back() + batch.parts - 1) / batch.parts, 1);
    schedule = {prefix.data(), static_cast<int>(batch.tiles.size()), length, batch.overhead, batch.whole};
  }
  std::vector<int> prefix{};
  SplitSchedule schedule{};
};

void check_merging(const SplitSchedule& schedule, int sequence) {
  const TileRange parts = schedule.parts_of(sequence);
  EXPECT_EQ(schedule.reduced(parts) || schedule.combined(parts), parts.end - parts.begin > 1);
  EXPECT_FALSE(schedule.reduced(parts) && schedule.combined(parts));
  if (schedule.reduced(parts)) {
    EXPECT_LE(parts.end - parts.begin, SplitSchedule::kMostReduced);
    for (int part = parts.begin + 1; part < parts.end; ++part) {  // what is waited for is done first
      EXPECT_EQ(schedule.first_sequence(part), sequence);
      EXPECT_GT(schedule.share(part, sequence).begin, 0);
    }
  }
  if (schedule.combined(parts)) {
    const int part = schedule.stand_in(parts);
    EXPECT_EQ(part % SplitSchedule::kMostReduced, 0);
    EXPECT_GT(part, parts.begin);
    EXPECT_LT(part, parts.end);
    EXPECT_EQ(schedule.first_sequence(part), sequence);
  }
}

void check(const Batch& batch) {
  const Scheduled scheduled(batch);
  const SplitSchedule& schedule = scheduled.schedule;
  std::vector<std::vector<int>> owners;
  for (const int tiles : batch.tiles) owners.emplace_back(static_cast<std::size_t>(tiles), -1);
  std::map<int, std::set<int>> parts_of;
  std::set<int> slots;
  for (int part = 0; part < batch.parts; ++part) {
    int cost = 0;
    for (int sequence = schedule.first_sequence(part); !schedule.past(part, sequence); ++sequence) {
      const TileRange share = schedule.share(part, sequence);
      if (share.empty()) continue;
      cost += share.end - share.begin;
      parts_of[sequence].insert(part);
      for (int tile = share.begin; tile < share.end; ++tile) {
        int& owner = owners[static_cast<std::size_t>(sequence)][static_cast<std::size_t>(tile)];
        EXPECT_EQ(owner, -1);
        owner = part;
      }
      const bool split = share.begin > 0 || share.end < schedule.tiles(sequence);
      if (split) {
        EXPECT_FALSE(batch.whole);
        EXPECT_TRUE(slots.insert(schedule.slot(part, share.begin > 0)).second);
      }
    }
    if (!batch.whole) {
      EXPECT_LE(cost, schedule.length);
    }
  }
  for (std::size_t sequence = 0; sequence < owners.size(); ++sequence) {
    for (const int owner : owners[sequence]) EXPECT_NE(owner, -1) << "a tile of sequence " << sequence << " is nobody's";
    const TileRange parts = schedule.parts_of(static_cast<int>(sequence));
    const std::set<int>& seen = parts_of[static_cast<int>(sequence)];
    EXPECT_EQ(static_cast<int>(seen.size()), parts.end - parts.begin);
    EXPECT_EQ(*seen.begin(), parts.begin);
    check_merging(schedule, static_cast<int>(sequence));
  }
}

TEST(SplitSchedule, EveryTileOnce) {
  for (const bool whole : {false, true}) {
    for (const int overhead : {0, 1, 3}) {
      for (const int parts : {1, 2, 3, 7, 132}) {
        for (const std::vector<int>& tiles :
             {std::vector<int>{1}, {5}, {1, 1, 1}, {7, 1, 30, 2}, {100}, {3, 3, 3, 3, 3, 3, 3, 3, 3}, {1, 64, 1}})
          check({tiles, parts, overhead, whole});
      }
    }
  }
}

/// Sequences of one size on the line for them, and on the one for any.
void check_lines(int parts, int size, int batch, int overhead) {
  for (const int told : {size, 0}) {
    const SplitLine line = split_line(parts, batch, batch * size, told, overhead);
    Batch sequences{std::vector<int>(static_cast<std::size_t>(batch), size), parts, line.overhead};
    sequences.length = line.length;
    for (const bool whole : {false, true}) {
      sequences.whole = whole;
      check(sequences);
    }
  }
}

TEST(SplitSchedule, RequestsOfOneSize) {
  for (const int parts : {1, 4, 66, 132}) {
    for (const int size : {1, 2, 5, 16, 64}) {
      for (const int batch : {1, 2, 3, 7, 32, 64, 128, 256}) {
        for (const int overhead : {0, 2, 3}) check_lines(parts, size, batch, overhead);
      }
    }
  }
}

TEST(SplitSchedule, CutsNothingThatFits) {
  const auto line = [](int parts, int batch, int size) {
    const SplitLine found = split_line(parts, batch, batch * size, size, 2);
    return std::pair{found.length, found.overhead};
  };
  EXPECT_EQ(line(66, 128, 16), std::pair(32, 0));  // two whole sequences to a part
  EXPECT_EQ(line(66, 256, 16), std::pair(64, 0));  // four
  EXPECT_EQ(line(132, 128, 64), std::pair(64, 0));
  EXPECT_EQ(line(66, 8, 64), std::pair(8, 0));   // eight parts to a sequence
  EXPECT_EQ(line(66, 10, 16), std::pair(3, 2));  // four parts of four would take longer than some that are cut
  EXPECT_EQ(line(132, 50, 5), std::pair(3, 1));  // two, the first of which has less
  EXPECT_EQ(line(66, 4, 16), std::pair(1, 0));
}

/// Checks that parts do the same by an even schedule as by the one in memory.
void check_even(const EvenSchedule& even, int parts, int size, int batch, int overhead, bool whole) {
  const SplitLine line = split_line(parts, batch, batch * size, size, overhead);
  Batch sequences{std::vector<int>(static_cast<std::size_t>(batch), size), parts, line.overhead, whole};
  sequences.length = line.length;
  const Scheduled scheduled(sequences);
  for (int part = 0; part < parts; ++part) {
    int sequence = scheduled.schedule.first_sequence(part), own = even.first_sequence(part);
    for (; own < batch && !even.share(part, own).empty(); ++own, ++sequence) {
      const TileRange share = scheduled.schedule.share(part, sequence), own_share = even.share(part, own);
      const TileRange sharing = scheduled.schedule.parts_of(sequence), own_sharing = even.parts_of(part, own);
      ASSERT_EQ(own, sequence);
      EXPECT_EQ(std::pair(own_share.begin, own_share.end), std::pair(share.begin, share.end));
      EXPECT_EQ(std::pair(own_sharing.begin, own_sharing.end), std::pair(sharing.begin, sharing.end));
      EXPECT_FALSE(SplitSchedule::reduced(sharing));
      EXPECT_EQ(even.shares > 1, SplitSchedule::combined(sharing));
    }
    EXPECT_TRUE(scheduled.schedule.past(part, sequence) || scheduled.schedule.share(part, sequence).empty());
  }
}

TEST(EvenSchedule, IsTheSplitSchedule) {
  int even_ones = 0;
  for (const bool whole : {false, true}) {
    for (const int parts : {1, 4, 66, 132}) {
      for (const int size : {1, 2, 3, 5, 16, 64, 67, 68, 140}) {
        for (const int batch : {1, 2, 3, 7, 10, 32, 50, 64, 128, 256}) {
          for (const int overhead : {0, 2, 3}) {
            const EvenSchedule even(parts, batch, size, overhead, whole);
            if (even.size == 0) continue;
            ++even_ones;
            check_even(even, parts, size, batch, overhead, whole);
          }
        }
      }
    }
  }
  EXPECT_GT(even_ones, 300);
}

TEST(EvenSchedule, OnlyWhereNothingIsCollected) {
  EXPECT_EQ(EvenSchedule(66, 4, 16, 2, false).shares, 16);
  EXPECT_EQ(EvenSchedule(66, 4, 16, 2, true).size, 0);       // whole sequences on a line that is cut
  EXPECT_EQ(EvenSchedule(66, 128, 16, 2, false).shares, 1);  // two whole ones to a part
  EXPECT_EQ(EvenSchedule(66, 100, 16, 2, false).size, 0);    // cut anywhere
  EXPECT_EQ(EvenSchedule(132, 50, 5, 2, false).size, 0);     // in two, which is reduced
}

/// Where a tile for each part is enough, whatever the sizes: with what sequences cost beside them, some parts would do two.
TEST(SplitSchedule, FewTilesHaveNoOverhead) {
  for (const int tiles : {3, 64, 66}) {
    const SplitLine line = split_line(66, 3, tiles, 0, 2);
    EXPECT_EQ(line.length, 1);
    EXPECT_EQ(line.overhead, 0);
  }
  const SplitLine more = split_line(66, 3, 67, 0, 2);
  EXPECT_EQ(more.length, 2);
  EXPECT_EQ(more.overhead, 2);
}

}  // namespace
}  // namespace fovea::detail
