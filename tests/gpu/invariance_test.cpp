// SPDX-License-Identifier: Apache-2.0
/// With batch_invariant, the rest of a batch chooses nothing that orders a row's sums: neither tiles nor splits.
#include <gtest/gtest.h>

#include <string>

#include "fake_runtime.hpp"
#include "fovea/attention.hpp"

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

}  // namespace
}  // namespace fovea::check
