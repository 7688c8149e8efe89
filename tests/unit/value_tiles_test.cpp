// SPDX-License-Identifier: Apache-2.0
/// Where e4m3 values lie for MMAs: each key at a place of its own, and tiles of sequences apart.
#include "gpu/cuda/common/value_tiles.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace fovea::gpu {
namespace {

TEST(ValueTiles, NeighboursAreThoseOfALane) {
  for (int place = 0; place < kValueUnit; ++place) EXPECT_EQ(value_place(value_key(place)), place);
  for (int lane = 0; lane < 4; ++lane) {
    const std::vector<int> want{2 * lane, 2 * lane + 1, 2 * lane + 8, 2 * lane + 9};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(value_key(4 * lane + i), want[static_cast<std::size_t>(i)]);
  }
}

struct Batch {
  bool ragged;
  std::int64_t batch, total_k, max_seq_k, kv_heads;
};

/// All triples of lengths, in order and without gaps.
TEST(ValueTiles, OfARaggedBatchDoNotOverlap) {
  constexpr int kTile = 4, kLongest = 9;
  for (int code = 0; code < (kLongest + 1) * (kLongest + 1) * (kLongest + 1); ++code) {
    const int lengths[] = {code % 10, code / 10 % 10, code / 100};
    int begin = 0;
    std::int64_t end = 0;  // of the tiles before
    for (int sequence = 0; sequence < 3; ++sequence) {
      const std::int64_t first = first_value_tile(true, kLongest, sequence, begin, kTile);
      EXPECT_GE(first, end);
      begin += lengths[sequence];
      end = first + std::max((lengths[sequence] + kTile - 1) / kTile, 1);
    }
    EXPECT_LE(2 * end, value_tile_count(Batch{true, 3, begin, kLongest, 2}, kTile));
  }
}

TEST(ValueTiles, OfOneLengthAreDense) {
  for (const int length : {0, 1, 4, 5, 9}) {
    const int of_sequence = std::max((length + 3) / 4, 1);
    EXPECT_EQ(first_value_tile(false, length, 2, 0, 4), 2 * of_sequence);
    EXPECT_EQ(value_tile_count(Batch{false, 3, 3 * length, length, 2}, 4), 6 * of_sequence);
  }
}

}  // namespace
}  // namespace fovea::gpu
