// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "gpu/cuda/sm100/attention/tuning.hpp"

namespace fovea::gpu::sm100::attention {
namespace {

constexpr int kSharedBytes = 227 * 1024, kSmallParts = 4096;  // barriers and statistics
constexpr int kRows = 128, kTensorColumns = 512, kRegisters = 65536;

TEST(Sm100Tuning, TakesTheNarrowestRow) {
  const auto named = [](std::int64_t qk, std::int64_t v) {
    const auto index = static_cast<std::size_t>(tuning_index(qk, v));
    return index < kTunings.size() ? kTunings[index].name : "none";
  };
  EXPECT_EQ(named(8, 8), "64");
  EXPECT_EQ(named(64, 64), "64");
  EXPECT_EQ(named(64, 72), "128");
  EXPECT_EQ(named(128, 128), "128");
  EXPECT_EQ(named(136, 8), "192x128");
  EXPECT_EQ(named(192, 128), "192x128");
  EXPECT_EQ(named(192, 136), "none");
  EXPECT_EQ(named(200, 64), "none");
}

TEST(Sm100Tuning, RowsFitAMultiprocessor) {
  for (const Tuning& row : kTunings) {
    const int tile_bytes = kRows * 2 * std::max(row.head_dim_qk, row.head_dim_v);
    EXPECT_LE(2 * kRows * 2 * row.head_dim_qk + row.stages * tile_bytes + kSmallParts, kSharedBytes);
    EXPECT_LE(2 * row.key_tile + 2 * kRows, kTensorColumns) << "sums of the second query tile begin at column 384";
    EXPECT_LE(row.head_dim_v, kRows);
    EXPECT_EQ(256 * row.softmax_registers + 128 * (row.correction_registers + row.other_registers), kRegisters);
  }
}

}  // namespace
}  // namespace fovea::gpu::sm100::attention
