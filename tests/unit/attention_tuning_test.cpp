// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::attention {
namespace {

void check_choice(Rows rows, std::int64_t dqk, std::int64_t dv, std::int64_t query_rows, bool same_keys) {
  const int index = tuning_index(rows, dqk, dv, query_rows, same_keys);
  ASSERT_LT(static_cast<std::size_t>(index), rows.size());
  const auto fits = [&](const Tuning& row) {
    return row.head_dim_qk >= dqk && row.head_dim_v >= dv && row.least_rows(same_keys) <= query_rows && (same_keys || row.cluster == 1);
  };
  const Tuning& chosen = rows[static_cast<std::size_t>(index)];
  EXPECT_TRUE(fits(chosen));
  for (const Tuning& row : rows) {
    if (!fits(row)) continue;
    const int columns = row.head_dim_qk * row.head_dim_v, chosen_columns = chosen.head_dim_qk * chosen.head_dim_v;
    EXPECT_LE(chosen_columns, columns) << dqk << "/" << dv;
    if (columns == chosen_columns) {
      EXPECT_GE(chosen.least_rows(same_keys), row.least_rows(same_keys)) << dqk << "/" << dv;
      EXPECT_GE(chosen.cluster, row.cluster) << dqk << "/" << dv;
    }
  }
}

TEST(AttentionTuning, EveryPairOfHeadDimsHasTheNarrowestRow) {
  for (const bool eight_bit : {false, true})
    for (const bool same_keys : {false, true})
      for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
        for (std::int64_t dv = 8; dv <= 256; dv += 8)
          for (const std::int64_t query_rows : {0, 2047, 2048, 3071, 3072, 4095, 4096})
            check_choice(tunings_of(eight_bit), dqk, dv, query_rows, same_keys);
}

}  // namespace
}  // namespace fovea::gpu::sm90::attention
