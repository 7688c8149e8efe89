// SPDX-License-Identifier: Apache-2.0
#include "support/cost.hpp"

#include <gtest/gtest.h>

namespace fovea::detail {
namespace {

AttentionCore core(const BandMask& mask) {
  AttentionCore core;
  core.q_dtype = core.kv_dtype = core.out_dtype = DType::bf16;
  core.heads = 8;
  core.kv_heads = 2;
  core.head_dim_qk = 192;
  core.head_dim_v = 128;
  core.mask = mask;
  return core;
}

TEST(Cost, FullAttention) {
  const Cost cost = sequence_cost(core({}), 3, 5);
  EXPECT_EQ(cost.flops, 2 * 3 * 5 * 8 * 320);
  EXPECT_EQ(cost.bytes, 2 * (3 * 8 * 320 + 5 * 2 * 320));
}

/// A causal prompt computes its triangle; a decode step reads all keys; a window reads the keys inside it.
TEST(Cost, MasksCountOnlyWhatIsVisible) {
  EXPECT_EQ(sequence_cost(core(causal()), 4, 4).flops, 2 * 10 * 8 * 320);
  EXPECT_EQ(sequence_cost(core(causal()), 1, 100).flops, 2 * 100 * 8 * 320);
  EXPECT_EQ(sequence_cost(core(sliding_window(10)), 1, 100).bytes, 2 * (8 * 320 + 10 * 2 * 320));
  EXPECT_EQ(sequence_cost(core(causal()), 0, 100), Cost{});
  EXPECT_EQ(sequence_cost(core(causal()), 3, 0).flops, 0);
}

}  // namespace
}  // namespace fovea::detail
