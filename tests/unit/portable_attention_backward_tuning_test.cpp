// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/cuda/portable/attention_backward/tuning.hpp"

namespace fovea::gpu::portable::attention_backward {
namespace {

constexpr int kKilobyte = 1 << 10;
constexpr int kDevices[] = {99 * kKilobyte, 163 * kKilobyte, 227 * kKilobyte};  // of a CTA

TEST(PortableAttentionBackwardTuning, EveryPairOfHeadDimsHasARowOnEveryDevice) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8)
      for (const int bytes : kDevices) {
        const int index = tuning_index(dqk, dv, bytes);
        ASSERT_LT(static_cast<std::size_t>(index), kTunings.size());
        const Tuning& chosen = kTunings[static_cast<std::size_t>(index)];
        EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv);
        EXPECT_LE(chosen.resident * chosen.shared_bytes(), bytes);
        EXPECT_LE(chosen.fused.shared_bytes(chosen.head_dim_qk + chosen.head_dim_v), bytes);
        const int widest = bytes > 99 * kKilobyte ? 128 : 64;  // head dim of the fused kernel
        EXPECT_EQ(chosen.fused.key_warps > 0, std::max(dqk, dv) <= widest) << dqk << "/" << dv;
      }
}

}  // namespace
}  // namespace fovea::gpu::portable::attention_backward
