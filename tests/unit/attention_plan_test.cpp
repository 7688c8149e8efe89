// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/common/attention_plan.hpp"

#include <gtest/gtest.h>

namespace fovea::gpu {
namespace {

TEST(AttentionPlan, PackedHeadsFillTheTileAndDivideTheGroup) {
  EXPECT_EQ(packed_heads(4, 1, 128, 128), 4);
  EXPECT_EQ(packed_heads(4, 128, 128, 128), 1);
  EXPECT_EQ(packed_heads(4, 64, 128, 128), 2);
  EXPECT_EQ(packed_heads(12, 1, 128, 128), 4);
  EXPECT_EQ(packed_heads(5, 1, 128, 128), 1);
  EXPECT_EQ(packed_heads(256, 1, 64, 64), 64);
  EXPECT_EQ(packed_heads(128, 1, 128, 64), 64);
  EXPECT_EQ(packed_heads(4, 1, 128, 1), 1);
}

TEST(AttentionPlan, SplitsFillTheSlotsUpToTheMostThatPay) {
  EXPECT_EQ(splits_of(8, 256, 264), 32);
  EXPECT_EQ(splits_of(8, 256, 132), 16);
  EXPECT_EQ(splits_of(1, 256, 132), 32);
  EXPECT_EQ(splits_of(1, 1, 132), 1);
  EXPECT_EQ(splits_of(1, 2, 132), 2);
  EXPECT_EQ(splits_of(132, 256, 132), 1);
  EXPECT_EQ(splits_of(1, 0, 132), 1);
  EXPECT_EQ(splits_of(0, 0, 132), 1);
}

}  // namespace
}  // namespace fovea::gpu
