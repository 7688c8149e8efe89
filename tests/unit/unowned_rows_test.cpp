// SPDX-License-Identifier: Apache-2.0
/// Rows of a ragged batch that no sequence has: which they are, and that a run fills those and no other.
#include "op/common/unowned_rows.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::detail {
namespace {

/// Each row, asked one by one.
std::set<std::int64_t> rows_outside(std::int64_t first, std::int64_t last, std::int64_t total) {
  std::set<std::int64_t> rows;
  for (std::int64_t row = 0; row < total; ++row) {
    if (row < first || row >= last) rows.insert(row);
  }
  return rows;
}

TEST(UnownedRows, AreThoseBeforeAndAfterTheSequences) {
  constexpr std::int64_t kTotal = 5;
  for (std::int64_t first = 0; first <= kTotal + 2; ++first) {
    for (std::int64_t last = first; last <= kTotal + 2; ++last) {
      const OutsideRows outside(first, last, kTotal);
      std::set<std::int64_t> rows;
      for (std::int64_t i = 0; i < outside.count(); ++i) rows.insert(outside.at(i));
      EXPECT_EQ(rows, rows_outside(first, last, kTotal)) << first << " to " << last;
      EXPECT_EQ(static_cast<std::int64_t>(rows.size()), outside.count()) << "each row once";
    }
  }
}

/// A device does not check lengths. Whatever they hold, rows lie within the tensor.
TEST(UnownedRows, StayWithinTheTensor) {
  constexpr std::int64_t kTotal = 4, kBound = 2;
  constexpr std::int64_t kNumbers[]{std::numeric_limits<std::int32_t>::min(), -1, 0, 3, 5, std::numeric_limits<std::int32_t>::max()};
  for (const std::int64_t first : kNumbers) {
    for (const std::int64_t last : kNumbers) {
      const OutsideRows outside(first, last, kTotal);
      ASSERT_LE(outside.count(), kTotal);
      for (std::int64_t i = 0; i < outside.count(); ++i) {
        EXPECT_GE(outside.at(i), 0);
        EXPECT_LT(outside.at(i), kTotal);
      }
      const RowRange cut = cut_rows(first, last, kBound, kTotal);
      EXPECT_GE(cut.begin, kBound);
      EXPECT_LE(cut.end, kTotal);
    }
  }
}

TEST(UnownedRows, OfASequenceOverTheBoundAreThosePastIt) {
  const RowRange over = cut_rows(1, 7, 4, 9), within = cut_rows(1, 5, 4, 9), longer_than_the_tensor = cut_rows(1, 12, 4, 9);
  EXPECT_EQ(over.begin, 5);
  EXPECT_EQ(over.end, 7);
  EXPECT_GE(within.begin, within.end);
  EXPECT_EQ(longer_than_the_tensor.end, 9);
}

/// Rows 1 and 2 have a sequence each; values of a row and head, their lse, and what lies between them.
struct Call {
  std::vector<float> q = std::vector<float>(5 * 2 * 8, 0.25f), out = std::vector<float>(5 * 2 * 12, 7.0f),
                     lse = std::vector<float>(5 * 3, 7.0f);
  std::vector<std::int32_t> lengths{1, 2, 3};

  void operator()(bool fill_out, bool fill_lse) {
    const TensorDesc rows = contiguous(DType::f32, {5, 2, 8});
    AttentionDesc desc{.q = rows, .k = rows, .v = rows, .out = rows, .lse = contiguous(DType::f32, {5, 2}), .ragged = RaggedDesc{2, 5, 5}};
    desc.out.strides = {24, 12, 1};
    desc.lse->strides = {3, 1};
    const AttentionPlan plan = plan_attention(desc, {}, {.fill_out = fill_out, .fill_lse = fill_lse}).value();
    std::vector<std::byte> memory(plan.workspace_bytes() + kWorkspaceAlignment);
    void* aligned = memory.data();
    std::size_t space = memory.size();
    std::align(kWorkspaceAlignment, plan.workspace_bytes(), aligned, space);
    AttentionArgs args{.q = q.data(), .k = q.data(), .v = q.data(), .out = out.data(), .lse = lse.data()};
    args.cu_seqlens_q = args.cu_seqlens_k = lengths.data();
    plan.run(args, {aligned, plan.workspace_bytes()}).value();
  }

  void expect(float out_outside, float lse_outside) const {
    for (std::size_t row = 0; row < 5; ++row) {
      const bool owned = row == 1 || row == 2;
      for (std::size_t head = 0; head < 2; ++head) {
        for (std::size_t d = 0; d < 12; ++d) {
          const float got = out[row * 24 + head * 12 + d];
          EXPECT_EQ(got, d >= 8 ? 7.0f : owned ? 0.25f : out_outside) << "row " << row << ", " << d;
        }
        if (!owned) {
          EXPECT_EQ(lse[row * 3 + head], lse_outside) << "row " << row;
        }
      }
      EXPECT_EQ(lse[row * 3 + 2], 7.0f) << "between the rows of lse";
    }
  }
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

TEST(UnownedRows, AreFilledAsThePlanSays) {
  for (const bool fill_out : {false, true}) {
    for (const bool fill_lse : {false, true}) {
      Call call;
      call(fill_out, fill_lse);
      call.expect(fill_out ? 0.0f : 7.0f, fill_lse ? kMinusInfinity : 7.0f);
    }
  }
}

TEST(UnownedRows, AreLeftAloneByARunThatFails) {
  Call call;
  call.lengths = {1, 2, 9};
  EXPECT_THROW(call(true, true), Exception);
  EXPECT_EQ(call.out.front(), 7.0f);
  EXPECT_EQ(call.lse.front(), 7.0f);
}

}  // namespace
}  // namespace fovea::detail
