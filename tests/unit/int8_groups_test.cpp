// SPDX-License-Identifier: Apache-2.0
/// Groups and scale shapes of the int8 quantisers, against the sets of tokens in the accumulator fragments.
#include <gtest/gtest.h>

#include <set>

#include "fovea/quantized_attention.hpp"

namespace fovea {
namespace {

TEST(Int8Groups, ShapesOfEachGranularity) {
  const TensorDesc q = contiguous(DType::f16, {2, 129, 6, 64}), k = contiguous(DType::f16, {2, 65, 3, 64});
  const auto groups = [&](Int8Granularity granularity, int warp_rows) {
    const Int8Groups g{granularity, warp_rows};
    return std::pair(g.q_scale(q).shape[2], g.k_scale(k).shape[2]);
  };
  EXPECT_EQ(groups(Int8Granularity::block, 32), std::pair(std::int64_t{2}, std::int64_t{2}));
  EXPECT_EQ(groups(Int8Granularity::warp, 32), std::pair(std::int64_t{8}, std::int64_t{2}));
  EXPECT_EQ(groups(Int8Granularity::warp, 16), std::pair(std::int64_t{16}, std::int64_t{2}));
  EXPECT_EQ(groups(Int8Granularity::thread, 32), std::pair(std::int64_t{64}, std::int64_t{8}));
  EXPECT_EQ(groups(Int8Granularity::thread, 16), std::pair(std::int64_t{128}, std::int64_t{8}));
}

TEST(Int8Groups, AThreadsRowsAndColumnsShareOne) {
  const Int8Groups g{Int8Granularity::thread, 16};
  EXPECT_EQ(g.q_group(3), g.q_group(11));  // rows l / 4 and l / 4 + 8 of a 16-row fragment
  EXPECT_NE(g.q_group(3), g.q_group(19));
  EXPECT_EQ(g.k_group(4), g.k_group(5));
  EXPECT_EQ(g.k_group(4), g.k_group(60));
  EXPECT_NE(g.k_group(4), g.k_group(6));
  EXPECT_NE(g.k_group(4), g.k_group(68));
}

/// Every length of two neighbours: no two sequences share a block, and the last fits.
TEST(Int8Groups, RaggedSequencesNeverShareABlock) {
  for (std::int64_t first = 0; first < 200; ++first) {
    for (std::int64_t second = 0; second < 200; ++second) {
      const std::int64_t next = Int8Groups::first_block(first, 1, 64), last = Int8Groups::first_block(first + second, 2, 64);
      ASSERT_GE(next, Int8Groups::blocks(first, 64));
      ASSERT_GE(last, next + Int8Groups::blocks(second, 64));
      ASSERT_GE(Int8Groups::ragged_blocks(first + second, 2, 64), next + Int8Groups::blocks(second, 64));
    }
  }
}

}  // namespace
}  // namespace fovea
