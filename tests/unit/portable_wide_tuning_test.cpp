// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/portable/wide_attention/tuning.hpp"

namespace fovea::gpu::portable::wide_attention {
namespace {

constexpr int kKilobyte = 1024;

TEST(PortableWideTuning, TakesTheLargestTileThatFits) {
  const auto named = [](std::int64_t rows, int kilobytes) {
    const auto index = static_cast<std::size_t>(tuning_index(rows, kilobytes * kKilobyte));
    return index < kTunings.size() ? kTunings[index].name : "none";
  };
  EXPECT_EQ(named(1000, 227), "64x64");
  EXPECT_EQ(named(1000, 163), "64x32");
  EXPECT_EQ(named(1000, 99), "16x32");
  EXPECT_EQ(named(1000, 64), "none");
  for (const int kilobytes : {99, 163, 227}) EXPECT_EQ(named(16, kilobytes), "16x32");
  EXPECT_EQ(named(17, 227), "64x64");
  EXPECT_EQ(named(8, 64), "none");
}

}  // namespace
}  // namespace fovea::gpu::portable::wide_attention
