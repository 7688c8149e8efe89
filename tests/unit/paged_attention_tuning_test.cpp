// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/paged_attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {
namespace {

TEST(PagedAttentionTuning, EveryPairOfHeadDimsHasAKernel) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8)
      for (const std::int64_t rows : {0, 1023, 1024}) {
        const int kernel = kernel_of(dqk, dv, rows);
        ASSERT_LT(static_cast<std::size_t>(kernel), kKernels.size());
        const attention::Tuning& chosen = tuning_of(kernel);
        const auto rows_from = [](int of) { return kKernels[static_cast<std::size_t>(of)].rows_from; };
        EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv && rows_from(kernel) <= rows);
        for (int before = 0; before < kernel; ++before) {
          const attention::Tuning& row = tuning_of(before);
          EXPECT_TRUE(row.head_dim_qk < dqk || row.head_dim_v < dv || rows_from(before) > rows) << dqk << "/" << dv;
        }
      }
}

/// No box crosses the end of a page, whatever the tile, and none of twice the rows would do.
TEST(PagedAttentionTuning, BoxesLieInOnePage) {
  for (int kernel = 0; kernel < static_cast<int>(kKernels.size()); ++kernel)
    for (std::int64_t page = kGroupRows; page <= 600; page += kGroupRows) {
      const int key_tile = tuning_of(kernel).key_tile;
      const auto fit = [&](int rows) {
        for (int key = 0; key < 20 * key_tile; key += rows) {
          if (key / page != (key + rows - 1) / page || key / key_tile != (key + rows - 1) / key_tile) return false;
        }
        return true;
      };
      const int rows = box_rows(page, key_tile);
      EXPECT_TRUE(rows % kGroupRows == 0 && fit(rows)) << page;
      EXPECT_FALSE(fit(2 * rows)) << page;
    }
}

/// The bounds allow a tall sequence, and one that is not, whose lengths are all tried.
TEST(PagedAttentionTuning, TwoKernelsNeedBothKindsOfSequences) {
  for (const std::int64_t group : {1, 3, 8, 22})
    for (std::int64_t batch = 1; batch <= 4; ++batch)
      for (std::int64_t most = 1; most <= 40; ++most)
        for (std::int64_t total = 1; total <= batch * most; ++total) {
          const Bounds call{.batch = batch, .total_q = total, .tokens = most, .group = group};
          const auto is_tall = [&](std::int64_t tokens) { return tokens > 1 && tokens * group > short_rows(call); };
          bool some_other = false;
          for (std::int64_t tokens = 0; tokens <= most && tokens <= total; ++tokens) {
            some_other |= !is_tall(tokens) && total - tokens <= (batch - 1) * most;
          }
          EXPECT_EQ(outdone_by_one(call).empty(), is_tall(most) && some_other) << group << " " << batch << " " << total << " " << most;
        }
}

}  // namespace
}  // namespace fovea::gpu::sm90::paged_attention
