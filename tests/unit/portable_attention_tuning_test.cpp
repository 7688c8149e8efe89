// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/portable/attention/tuning.hpp"

namespace fovea::gpu::portable::attention {
namespace {

constexpr int kKilobyte = 1 << 10;
constexpr int kDevices[] = {64 * kKilobyte, 99 * kKilobyte, 163 * kKilobyte, 227 * kKilobyte};  // shared memory of a CTA

TEST(PortableAttentionTuning, EveryPairOfHeadDimsHasARowOnEveryDevice) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8)
      for (const int bytes : kDevices) {
        const int index = tuning_index(dqk, dv, bytes);
        ASSERT_LT(static_cast<std::size_t>(index), kTunings.size());
        const Tuning& chosen = kTunings[static_cast<std::size_t>(index)];
        EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv && chosen.resident * chosen.shared_bytes() <= bytes);
        EXPECT_GE(resident_ctas(chosen, bytes), chosen.resident);
        for (const Tuning& row : kTunings) {
          const bool would_do = row.head_dim_qk >= dqk && row.head_dim_v >= dv && row.resident * row.shared_bytes() <= bytes;
          if (!would_do) continue;
          EXPECT_LE(chosen.head_dim_qk * chosen.head_dim_v, row.head_dim_qk * row.head_dim_v) << dqk << "/" << dv;
        }
      }
}

/// The loads of RowCopy: all threads have rows, eight at least between one and the next of a thread.
TEST(PortableAttentionTuning, ThreadsDivideTheTiles) {
  for (const Tuning& row : kTunings)
    for (const int columns : {row.head_dim_qk, row.head_dim_v}) {
      const int step = 32 * row.warps / (columns % 64 == 0 ? 8 : 4);
      EXPECT_TRUE(row.key_tile % step == 0 && row.row_tile() % step == 0 && step % 8 == 0);
    }
}

}  // namespace
}  // namespace fovea::gpu::portable::attention
