// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/sm90/paged_attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {
namespace {

TEST(PagedAttentionTuning, EveryPairOfHeadDimsHasAKernel) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8)
      for (const std::int64_t rows : {0, 2047, 2048}) {
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

}  // namespace
}  // namespace fovea::gpu::sm90::paged_attention
