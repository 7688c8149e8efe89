// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/cuda/portable/attention_backward/tuning.hpp"
#include "gpu/cuda/portable/block_attention_backward/tuning.hpp"

namespace fovea::gpu::portable::attention_backward {
namespace {

constexpr int kKilobyte = 1 << 10;
constexpr int kDevices[] = {99, 163, 227};  // KB of shared memory that a CTA may have; a multiprocessor has one more

/// Whether a multiprocessor has the shared memory for the CTAs that a row wants. Each takes a kilobyte for the system.
bool fits(const Tuning& row, int kilobytes) {
  const auto one = [&](const Tiles& tiles) { return row.resident * (row.bytes_of(tiles) + kKilobyte) <= (kilobytes + 1) * kKilobyte; };
  return one(row.queries) && one(row.keys);
}

TEST(PortableBackwardTuning, EveryPairOfHeadDimsHasTheSmallestRowThatFits) {
  for (std::int64_t dqk = 8; dqk <= 256; dqk += 8)
    for (std::int64_t dv = 8; dv <= 256; dv += 8)
      for (const int kilobytes : kDevices) {
        const int index = tuning_index(dqk, dv, kilobytes * kKilobyte);
        ASSERT_LT(static_cast<std::size_t>(index), kTunings.size());
        const Tuning& chosen = kTunings[static_cast<std::size_t>(index)];
        EXPECT_TRUE(chosen.head_dim_qk >= dqk && chosen.head_dim_v >= dv && fits(chosen, kilobytes));
        EXPECT_LE(chosen.fused.shared_bytes(chosen.head_dim_qk + chosen.head_dim_v), kilobytes * kKilobyte);
        const int widest = kilobytes > 99 ? 128 : 64;  // head dim of the fused kernel
        EXPECT_EQ(chosen.fused.key_warps > 0, std::max(dqk, dv) <= widest) << dqk << "/" << dv;
        for (const Tuning& row : kTunings) {
          if (row.head_dim_qk < dqk || row.head_dim_v < dv || !fits(row, kilobytes)) continue;
          EXPECT_LE(chosen.head_dim_qk * chosen.head_dim_v, row.head_dim_qk * row.head_dim_v) << dqk << "/" << dv;
        }
      }
}

/// The loads of RowCopy: all threads have rows, eight at least between one and the next of a thread.
TEST(PortableBackwardTuning, ThreadsDivideTheTiles) {
  for (const Tuning& row : kTunings)
    for (const Tiles& tiles : {row.queries, row.keys})
      for (const int columns : {row.head_dim_qk, row.head_dim_v}) {
        const int step = 32 * kWarps / (columns % 64 == 0 ? 8 : 4);
        EXPECT_TRUE(tiles.columns % step == 0 && tiles.rows() % step == 0 && step % 8 == 0);
      }
}

/// Registers that a lane needs for gradients, scores and dp leave some of 255 for operands and addresses.
TEST(PortableBackwardTuning, GradientsFitIntoRegisters) {
  for (const Tuning& row : kTunings) {
    const int dims = row.keys_at_once ? row.head_dim_qk + row.head_dim_v : std::max(row.head_dim_qk, row.head_dim_v);
    EXPECT_LE(row.queries.blocks * (row.head_dim_qk / 2 + row.queries.columns), 192);
    EXPECT_LE(row.keys.blocks * (dims / 2 + row.keys.columns), 192);
  }
}

/// Tuning of a gradient under a block mask, for each size of blocks.
TEST(PortableBackwardTuning, EveryBlockHasARowThatFitsAndDividesIt) {
  namespace listed = block_attention_backward;
  for (const Gradients of : {Gradients::dq, Gradients::dk_dv, Gradients::dk, Gradients::dv})
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8)
      for (std::int64_t block = 64; block <= 512; block += 64)
        for (const int kilobytes : kDevices) {
          if (of != Gradients::dq && (of == Gradients::dk_dv) != listed::keys_at_once(head_dim)) continue;
          const int index = listed::tuning_index(of, head_dim, block, kilobytes * kKilobyte);
          ASSERT_LT(static_cast<std::size_t>(index), listed::kTunings.size());
          const listed::Tuning& chosen = listed::kTunings[static_cast<std::size_t>(index)];
          EXPECT_TRUE(chosen.of == of && chosen.head_dim >= head_dim && block % chosen.tiles.rows() == 0);
          EXPECT_EQ(chosen.head_dim, head_dim > 128 ? 256 : head_dim > 64 ? 128 : 64);
          EXPECT_LE(chosen.resident * (chosen.shared_bytes() + kKilobyte), (kilobytes + 1) * kKilobyte);
          if (block % 128 == 0 && kilobytes == 227 && of == Gradients::dq && head_dim <= 128) {
            EXPECT_EQ(chosen.tiles.rows(), 128);
          }
        }
}

}  // namespace
}  // namespace fovea::gpu::portable::attention_backward
