// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::attention {
namespace {

TEST(AttentionTuning, EveryPairOfHeadDimsHasTheNarrowestRow) {
  for (const bool eight_bit : {false, true})
    for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
      for (std::int64_t dv = 8; dv <= 256; dv += 8)
        for (const bool pairs : {false, true}) {
          const auto rows = tunings_of(eight_bit);
          const int index = tuning_index(rows, dqk, dv, pairs);
          ASSERT_LT(static_cast<std::size_t>(index), rows.size());
          const Tuning& chosen = rows[static_cast<std::size_t>(index)];
          EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv && (pairs || chosen.cluster == 1));
          for (const Tuning& row : rows) {
            if (row.head_dim_qk >= dqk && row.head_dim_v >= dv && row.cluster == 1) {
              EXPECT_LE(chosen.head_dim_qk * chosen.head_dim_v, row.head_dim_qk * row.head_dim_v) << dqk << "/" << dv;
            }
          }
        }
}

TEST(AttentionTuning, PackedHeadsFillTheTileAndDivideTheGroup) {
  EXPECT_EQ(packed_heads(4, 1, 128), 4);
  EXPECT_EQ(packed_heads(4, 128, 128), 1);
  EXPECT_EQ(packed_heads(4, 64, 128), 2);
  EXPECT_EQ(packed_heads(12, 1, 128), 4);
  EXPECT_EQ(packed_heads(5, 1, 128), 1);
  EXPECT_EQ(packed_heads(128, 1, 128), 64);  // a warpgroup's rows are stored as one box
}

TEST(AttentionTuning, SplitsFillTheMultiprocessorsWithFourTilesEach) {
  EXPECT_EQ(splits_of(8, 1024, 132), 16);
  EXPECT_EQ(splits_of(1, 1024, 132), 32);
  EXPECT_EQ(splits_of(1, 7, 132), 1);
  EXPECT_EQ(splits_of(1, 8, 132), 2);
  EXPECT_EQ(splits_of(132, 1024, 132), 1);
  EXPECT_EQ(splits_of(0, 0, 132), 1);
}

TEST(AttentionTuning, PairsSeeTheSameKeys) {
  EXPECT_TRUE(sees_in_pairs(4096, false, false, false));
  EXPECT_FALSE(sees_in_pairs(4096, false, true, false));
  EXPECT_TRUE(sees_in_pairs(16384, false, true, false));
  EXPECT_FALSE(sees_in_pairs(16384, false, true, true));
  EXPECT_FALSE(sees_in_pairs(16384, true, false, false));
  EXPECT_FALSE(sees_in_pairs(1, false, false, false));
}

}  // namespace
}  // namespace fovea::gpu::sm90::attention
