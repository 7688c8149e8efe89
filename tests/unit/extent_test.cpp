// SPDX-License-Identifier: Apache-2.0
/// Which tensors share memory: layouts that callers use, and small ones against a list of all their bytes.
#include "op/common/extent.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fovea/fovea.hpp"

namespace fovea::detail {
namespace {

using Shape = std::vector<std::int64_t>;

/// A view of one allocation of bf16: elements from its beginning, extents and strides.
struct View {
  std::int64_t offset;
  Shape shape, strides;

  TensorDesc desc() const {
    TensorDesc desc{.dtype = DType::bf16, .rank = static_cast<int>(shape.size())};
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      desc.shape[axis] = shape[axis];
      desc.strides[axis] = strides[axis];
    }
    return desc;
  }
};

/// Both ways round.
bool overlap_of(const View& a, const View& b) {
  const auto at = [](const View& view) {
    return reinterpret_cast<const void*>(std::uintptr_t{1 << 20} + static_cast<std::uintptr_t>(2 * view.offset));
  };
  const Extent of_a = extent_of(a.desc()), of_b = extent_of(b.desc());
  const bool forth = overlap({at(a), &of_a}, {at(b), &of_b}), back = overlap({at(b), &of_b}, {at(a), &of_a});
  EXPECT_EQ(forth, back);
  return forth;
}

struct Pair {
  const char* name;
  View a, b;
};

/// 7 tokens of 3 heads of 8 values: q, k and v side by side in each token.
constexpr std::int64_t kToken = 3 * 3 * 8;
View slice(std::int64_t which) { return {which * 24, {7, 3, 8}, {kToken, 8, 1}}; }
View dense(std::int64_t offset, std::int64_t rows) { return {offset, {rows, 3, 8}, {24, 8, 1}}; }
/// Blocks of 4 tokens of 2 heads: K and V in turn for each token, or for each block, or for all of the cache.
View by_token(std::int64_t which) { return {which * 16, {5, 4, 2, 8}, {128, 32, 8, 1}}; }
View by_block(std::int64_t which) { return {which * 64, {5, 4, 2, 8}, {128, 16, 8, 1}}; }
View by_head(std::int64_t which) { return {which * 8, {5, 4, 2, 8}, {128, 32, 16, 1}}; }
View whole(std::int64_t which) { return {which * 5 * 64, {5, 4, 2, 8}, {64, 16, 8, 1}}; }
/// Heads before tokens, as many caches have it.
View heads_first(std::int64_t which) { return {which * 64, {5, 4, 2, 8}, {128, 8, 32, 1}}; }

TEST(Extent, ViewsThatInterleaveAreApart) {
  const std::vector<Pair> pairs{
      {"q and k of one buffer", slice(0), slice(1)},
      {"q and v of one buffer", slice(0), slice(2)},
      {"k and v by token", by_token(0), by_token(1)},
      {"k and v by block", by_block(0), by_block(1)},
      {"k and v by head", by_head(0), by_head(1)},
      {"k and v one after the other", whole(0), whole(1)},
      {"k and v with heads first", heads_first(0), heads_first(1)},
      {"rows behind others", dense(0, 7), dense(7 * 24, 7)},
      {"one layer of many", {0, {5, 4, 2, 8}, {640, 16, 8, 1}}, {128, {5, 4, 2, 8}, {640, 16, 8, 1}}},
      {"odd and even rows", {0, {4, 3, 8}, {48, 8, 1}}, {24, {4, 3, 8}, {48, 8, 1}}},
      {"rows within padded ones", {0, {7, 3, 8}, {40, 8, 1}}, {24, {7, 2, 8}, {40, 8, 1}}},
      {"one row in a gap", {0, {7, 3, 8}, {40, 8, 1}}, {64, {1, 2, 8}, {16, 8, 1}}},
      {"the token that the slots of others leave", {0, {7, 8}, {24, 1}}, {8, {7, 16}, {24, 1}}},
      {"an empty tensor", {30, {0, 3, 8}, {24, 8, 1}}, dense(0, 7)},
  };
  for (const auto& [name, a, b] : pairs) EXPECT_FALSE(overlap_of(a, b)) << name;
}

TEST(Extent, ViewsThatShareAByteAreFound) {
  const std::vector<Pair> pairs{
      {"the same", dense(0, 7), dense(0, 7)},
      {"shifted by a row", dense(0, 7), dense(24, 7)},
      {"shifted by all but an element", dense(0, 7), dense(7 * 24 - 1, 7)},
      {"shifted by an element", slice(0), {1, {7, 3, 8}, {kToken, 8, 1}}},
      {"within", dense(0, 7), dense(48, 2)},
      {"q and all of the buffer", slice(0), {0, {7, 9, 8}, {kToken, 8, 1}}},
      {"rows of another pitch", {0, {7, 3, 8}, {40, 8, 1}}, {24, {7, 3, 8}, {56, 8, 1}}},
      {"a row over a gap", {0, {7, 3, 8}, {40, 8, 1}}, {60, {1, 3, 8}, {24, 8, 1}}},
      {"k over v by one token", by_token(0), {32, {4, 4, 2, 8}, {128, 32, 8, 1}}},
      {"k over v by one head", by_token(1), {8, {5, 4, 2, 8}, {128, 32, 8, 1}}},
      {"broadcast", {48, {9, 3, 8}, {0, 8, 1}}, dense(0, 7)},
      {"transposed", dense(0, 7), {0, {3, 7, 8}, {8, 24, 1}}},
      {"columns in turn", {0, {8, 7}, {1, 8}}, {4, {2, 7}, {1, 8}}},
  };
  for (const auto& [name, a, b] : pairs) EXPECT_TRUE(overlap_of(a, b)) << name;
}

std::set<std::int64_t> elements_of(const View& view) {
  std::set<std::int64_t> all{view.offset};
  for (std::size_t axis = 0; axis < view.shape.size(); ++axis) {
    std::set<std::int64_t> with_axis;
    for (const std::int64_t element : all) {
      for (std::int64_t i = 0; i < view.shape[axis]; ++i) with_axis.insert(element + i * view.strides[axis]);
    }
    all = std::move(with_axis);
  }
  return all;
}

/// Strides that do not nest, too.
TEST(Extent, AgreesWithAListOfAllElements) {
  std::mt19937 random(1);
  const auto below = [&](int end) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(end)); };
  int shared = 0;
  constexpr int kPairs = 4000;
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto view = [&] {
      View made{below(60), {}, {}};
      for (std::int64_t axes = 1 + below(4); axes > 0; --axes) {
        made.shape.push_back(1 + below(4));
        made.strides.push_back(below(3) == 0 ? below(3) : below(40));
      }
      return made;
    };
    const View a = view(), b = view();
    const auto of_a = elements_of(a), of_b = elements_of(b);
    const bool want = std::any_of(of_a.begin(), of_a.end(), [&](std::int64_t element) { return of_b.contains(element); });
    shared += want ? 1 : 0;
    ASSERT_EQ(overlap_of(a, b), want) << "pair " << pair;
  }
  EXPECT_GT(shared, kPairs / 4);
  EXPECT_LT(shared, 3 * kPairs / 4);
}

TEST(Extent, OfAPackedCacheIsItsBlocks) {
  const LatentCacheDesc dense{.format = CacheFormat::v4_fp8, .blocks = 3, .page = 2}, apart{dense.format, {}, 3, 2, 2 * 584 + 16};
  EXPECT_EQ(extent_of(dense).run, 3 * 2 * 584);
  EXPECT_EQ(extent_of(apart).run, 2 * 584);
  EXPECT_EQ(extent_of(apart).reach(), 3 * (2 * 584 + 16) - 16);
}

/// The refusal of run() is in the words of Pointers, for every operation that its table of fields describes.
TEST(Extent, ARunRefusesAnOutputOverAPartOfAnInput) {
  std::vector<float> memory(40 * 2 * 8);
  const TensorDesc rows = contiguous(DType::f32, {10, 2, 8});
  const AttentionDesc desc{.q = rows, .k = rows, .v = rows, .out = rows, .ragged = RaggedDesc{1, 10, 10}};
  const AttentionPlan plan = plan_attention(desc).value();
  const std::vector<std::int32_t> lengths{0, 10};
  alignas(kWorkspaceAlignment) static std::byte workspace[1 << 20];
  ASSERT_LE(plan.workspace_bytes(), sizeof workspace);
  const auto error_of = [&](std::int64_t q_row, std::int64_t out_row) {
    AttentionArgs args{.q = memory.data() + q_row * 16, .k = memory.data() + 20 * 16, .v = memory.data() + 20 * 16};
    args.out = memory.data() + out_row * 16;
    args.cu_seqlens_q = args.cu_seqlens_k = lengths.data();
    const Result<void> done = plan.run(args, {workspace, sizeof workspace});
    return done ? std::string() : done.error().message;
  };
  EXPECT_EQ(error_of(0, 10), "");
  EXPECT_EQ(error_of(0, 0), "args.out (address): got that of q, want memory of its own");
  EXPECT_EQ(error_of(0, 9), "args.out (memory): got a part of q, want memory of its own");
  EXPECT_EQ(error_of(3, 11), "args.out (memory): got a part of q, want memory of its own");
  EXPECT_EQ(error_of(0, 29), "args.out (memory): got a part of k, want memory of its own");
  EXPECT_EQ(error_of(0, 30), "");
}

}  // namespace
}  // namespace fovea::detail
