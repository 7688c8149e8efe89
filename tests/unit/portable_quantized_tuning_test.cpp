// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "gpu/cuda/portable/quantized_attention/tuning.hpp"

namespace fovea::gpu::portable::quantized_attention {
namespace {

constexpr int kKilobyte = 1 << 10;

TEST(PortableQuantizedTuning, EveryHeadDimHasARowOnEveryDevice) {
  for (const int bytes : {64 * kKilobyte, 99 * kKilobyte, 163 * kKilobyte, 227 * kKilobyte})  // shared memory of a CTA
    for (const std::int64_t head_dim : {64, 96, 128, 256})
      for (const int value_size : {1, 2}) {
        const int index = tuning_index(head_dim, value_size, bytes);
        ASSERT_LT(static_cast<std::size_t>(index), kTunings.size());
        const Tuning& row = kTunings[static_cast<std::size_t>(index)];
        EXPECT_TRUE(row.head_dim == head_dim && row.resident * row.shared_bytes(value_size) <= bytes);
      }
}

/// Swizzled rows have spans of 64 or 128 bytes; eight rows at least lie between one and the next of a thread.
TEST(PortableQuantizedTuning, ThreadsDivideTheTiles) {
  for (const Tuning& row : kTunings)
    for (const int row_bytes : {row.code_row_bytes(), row.value_row_bytes(1), row.value_row_bytes(2)}) {
      EXPECT_EQ(row_bytes % 64, 0);
      const int step = 32 * row.warps / (row_bytes % 128 == 0 ? 8 : 4);
      EXPECT_TRUE(row.key_tile % step == 0 && row.row_tile() % step == 0 && step % 8 == 0);
    }
}

/// A lane has one scale, as tiles lie within the blocks of queries and keys.
TEST(PortableQuantizedTuning, TilesLieWithinBlocks) {
  for (const Tuning& row : kTunings) EXPECT_TRUE(128 % row.row_tile() == 0 && 64 % row.key_tile == 0);
}

}  // namespace
}  // namespace fovea::gpu::portable::quantized_attention
