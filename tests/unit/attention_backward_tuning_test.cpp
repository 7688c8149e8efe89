// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/attention_backward/tuning.hpp"

namespace fovea::gpu::sm90::attention_backward {
namespace {

TEST(AttentionBackwardTuning, EveryPairOfHeadDimsHasTheNarrowestRow) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8) {
      const int index = tuning_index(dqk, dv);
      ASSERT_LT(static_cast<std::size_t>(index), kTunings.size());
      const Tuning& chosen = kTunings[static_cast<std::size_t>(index)];
      EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv) << dqk << "/" << dv;
      for (const Tuning& row : kTunings) {
        if (row.head_dim_qk >= dqk && row.head_dim_v >= dv) {
          EXPECT_LE(chosen.head_dim_qk * chosen.head_dim_v, row.head_dim_qk * row.head_dim_v) << dqk << "/" << dv;
        }
      }
    }
}

TEST(AttentionBackwardTuning, RowsThatHaveAKernelOfDqSayItsTiles) {
  for (const Tuning& row : kTunings) {
    for (const int size : {row.dq_key_tile, row.dq_key_stages, row.dq_value_stages}) EXPECT_EQ(size > 0, row.separate_dq());
    EXPECT_EQ(row.key_tile, row.separate_dq() ? 64 : 128);
    EXPECT_EQ(row.dq_in_score_warpgroups(), row.head_dim_qk == 192 && row.head_dim_v == 128);
  }
}

}  // namespace
}  // namespace fovea::gpu::sm90::attention_backward
