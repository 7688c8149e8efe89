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

/// What is chosen for sequences of up to 4096 rows, `rows` in all.
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

}  // namespace
}  // namespace fovea::check
