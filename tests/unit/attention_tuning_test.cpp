// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::attention {
namespace {

TEST(AttentionTuning, EveryPairOfHeadDimsHasTheNarrowestRow) {
  for (const bool eight_bit : {false, true})
    for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
      for (std::int64_t dv = 8; dv <= 256; dv += 8)
        for (const std::int64_t query_rows : {0, 4095, 4096}) {
          const auto rows = tunings_of(eight_bit);
          const int index = tuning_index(rows, dqk, dv, query_rows);
          ASSERT_LT(static_cast<std::size_t>(index), rows.size());
          const Tuning& chosen = rows[static_cast<std::size_t>(index)];
          EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv && chosen.rows_from <= query_rows);
          for (const Tuning& row : rows) {
            if (row.head_dim_qk < dqk || row.head_dim_v < dv || row.rows_from > query_rows) continue;
            const int columns = row.head_dim_qk * row.head_dim_v, chosen_columns = chosen.head_dim_qk * chosen.head_dim_v;
            EXPECT_LE(chosen_columns, columns) << dqk << "/" << dv;
            if (columns == chosen_columns) {
              EXPECT_GE(chosen.rows_from, row.rows_from) << dqk << "/" << dv;
            }
          }
        }
}

}  // namespace
}  // namespace fovea::gpu::sm90::attention
