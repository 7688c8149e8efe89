// SPDX-License-Identifier: Apache-2.0
/// With batch_invariant, the rest of a batch chooses nothing that orders a row's sums: neither tiles nor splits. With exact_rows, neither
/// does the kind of call.
#include <gtest/gtest.h>

#include <string>

#include "fake_runtime.hpp"
#include "fovea/attention.hpp"
#include "fovea/paged_attention.hpp"

namespace fovea::check {
namespace {

/// The planner's choice for sequences of up to 4096 rows, `rows` in all.
std::string chosen(std::int64_t head_dim, std::int64_t batch, std::int64_t rows, bool batch_invariant) {
  const auto shape = [&](std::int64_t dim) {
    TensorDesc desc = contiguous(DType::bf16, {rows, 16, dim});
    desc.alignment = 16;
    return desc;
  };
  AttentionDesc desc{.q = shape(head_dim), .k = shape(head_dim), .v = shape(128), .out = shape(128)};
  desc.ragged = RaggedDesc{.batch = batch, .max_seq_q = 4096, .max_seq_k = 4096};
  return plan_attention(desc, {Backend::cuda, 0}, {.implementation = "cuda.sm90.attention", .batch_invariant = batch_invariant})
      .value()
      .explain();
}

TEST(BatchInvariance, OtherSequencesDoNotChooseTilesOnHopper) {
  for (const std::int64_t head_dim : {128, 192}) {
    EXPECT_NE(chosen(head_dim, 4, 4 * 4096, false), chosen(head_dim, 256, 4096 + 255, false));
    EXPECT_EQ(chosen(head_dim, 4, 4 * 4096, true), chosen(head_dim, 256, 4096 + 255, true));
  }
}

/// The part of a plan's text that names its tiles: "128 x 128 tiles for head dims up to 128/128".
std::string tiles_of(std::string_view text) {
  const std::size_t x = text.find(" x "), begin = text.rfind(' ', x - 1) + 1, end = text.find_first_of(",\n", x);
  return std::string(text.substr(begin, end - begin));
}

TEST(ExactRows, EveryCallHasTheSameTilesOnHopper) {
  const PlanOptions exact{.exact_rows = true};
  const auto rows = [](std::initializer_list<std::int64_t> shape) {
    TensorDesc desc = contiguous(DType::bf16, shape);
    desc.alignment = 16;
    return desc;
  };
  for (const std::int64_t dim : {64, 96, 128, 160, 192, 256}) {
    const TensorDesc cache = rows({8192, 16, 8, dim});
    std::string tiles;
    for (const std::int64_t tokens : {1, 300, 4096, 16384}) {
      const TensorDesc q = rows({1, tokens, 16, dim}), flat = rows({tokens, 16, dim});
      const auto dense = plan_attention({.q = q, .k = q, .v = q, .out = q}, {Backend::cuda, 0}, exact);
      const auto paged = plan_paged_attention(
          {.q = flat, .k_cache = cache, .v_cache = cache, .block_table = contiguous(DType::i32, {1, 4096}), .out = flat},
          {Backend::cuda, 0}, exact);
      ASSERT_TRUE(dense && paged) << dim << " " << tokens;
      EXPECT_EQ(dense->implementation(), "cuda.sm90.attention");
      EXPECT_EQ(paged->implementation(), "cuda.sm90.paged_attention");
      if (tiles.empty()) tiles = tiles_of(dense->explain());
      EXPECT_EQ(tiles_of(dense->explain()), tiles) << dim << " " << tokens;
      EXPECT_EQ(tiles_of(paged->explain()), tiles) << dim << " " << tokens;
      EXPECT_EQ(dense->explain().find("splits"), std::string::npos) << dense->explain();
    }
  }
}

/// Decodes of 8 kv heads. Their workspace is monotone in all bounds, also where more sequences have another kernel.
TEST(ExactRows, FewSequencesAreComputedByColumnsOnHopper) {
  const auto planned = [](std::int64_t batch, std::int64_t tokens, std::int64_t blocks) {
    TensorDesc q = contiguous(DType::bf16, {batch * tokens, 32, 128}), cache = contiguous(DType::bf16, {100000, 64, 8, 128});
    q.alignment = cache.alignment = 16;
    const TensorDesc table = contiguous(DType::i32, {batch, blocks});
    return plan_paged_attention({.q = q, .k_cache = cache, .v_cache = cache, .block_table = table, .out = q, .max_seq_q = tokens},
                                {Backend::cuda, 0}, {.exact_rows = true})
        .value();
  };
  const auto by_columns = [&](auto... bounds) { return planned(bounds...).explain().find("columns to a CTA") != std::string::npos; };
  EXPECT_TRUE(by_columns(1, 1, 128));
  EXPECT_TRUE(by_columns(4, 4, 128));
  EXPECT_FALSE(by_columns(64, 1, 128));    // sequences for all multiprocessors
  EXPECT_FALSE(by_columns(1, 5, 128));     // 20 query rows
  EXPECT_FALSE(by_columns(4, 4, 100000));  // a workspace of gigabytes
  for (const std::int64_t batch : {1, 3, 4, 64}) {
    for (const std::int64_t tokens : {1, 4, 300}) {
      for (const std::int64_t blocks : {1, 128, 5000, 100000}) {
        const std::size_t bytes = planned(batch, tokens, blocks).workspace_bytes();
        EXPECT_LE(bytes, planned(batch + 1, tokens, blocks).workspace_bytes()) << batch << " " << tokens << " " << blocks;
        EXPECT_LE(bytes, planned(batch, tokens + 1, blocks).workspace_bytes()) << batch << " " << tokens << " " << blocks;
        EXPECT_LE(bytes, planned(batch, tokens, blocks + 100).workspace_bytes()) << batch << " " << tokens << " " << blocks;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::check
