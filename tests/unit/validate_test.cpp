// SPDX-License-Identifier: Apache-2.0
/// Normalisation: the problems that validate() makes of good descriptions. tests/conformance checks its errors for bad ones.
#include <gtest/gtest.h>

#include "op/attention/problem.hpp"
#include "op/common/checks.hpp"
#include "op/latent_attention/problem.hpp"
#include "op/paged_attention/problem.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::detail {
namespace {

AttentionDesc fixed() {
  AttentionDesc desc;
  desc.q = contiguous(DType::bf16, {2, 5, 8, 64});
  desc.k = contiguous(DType::bf16, {2, 7, 2, 64});
  desc.v = contiguous(DType::bf16, {2, 7, 2, 32});
  desc.out = contiguous(DType::bf16, {2, 5, 8, 32});
  desc.lse = contiguous(DType::f32, {2, 8, 5});
  return desc;
}

TEST(Validate, FixedBatch) {
  const AttentionProblem problem = validate(fixed(), {}).value();
  EXPECT_EQ(problem.batch, 2);
  EXPECT_EQ(problem.total_q, 10);
  EXPECT_EQ(problem.max_seq_q, 5);
  EXPECT_EQ(problem.max_seq_k, 7);
  EXPECT_EQ(problem.group(), 4);
  EXPECT_EQ(problem.head_dim_v, 32);
  EXPECT_FLOAT_EQ(problem.scale, 0.125f);
  EXPECT_EQ(problem.lse.row, 1);
  EXPECT_EQ(problem.lse.head, 5);
  EXPECT_EQ(problem.lse.batch, 40);
  EXPECT_TRUE(problem.has_lse);
}

TEST(Validate, RaggedBoundsAreClampedToTheRows) {
  AttentionDesc desc;
  desc.q = desc.out = contiguous(DType::f32, {10, 4, 16});
  desc.k = desc.v = contiguous(DType::f32, {20, 4, 16});
  desc.ragged = RaggedDesc{3, 1000, 6};
  const AttentionProblem problem = validate(desc, {}).value();
  EXPECT_TRUE(problem.ragged);
  EXPECT_EQ(problem.batch, 3);
  EXPECT_EQ(problem.max_seq_q, 10);
  EXPECT_EQ(problem.max_seq_k, 6);
  EXPECT_EQ(problem.q.batch, 0);
}

TEST(Validate, PagedDefaultsComeFromTheTable) {
  PagedAttentionDesc desc;
  desc.q = desc.out = contiguous(DType::f16, {9, 6, 128});
  desc.k_cache = desc.v_cache = contiguous(DType::f16, {50, 16, 3, 128});
  desc.block_table = contiguous(DType::i32, {4, 5});
  const PagedAttentionProblem problem = validate(desc, {}).value();
  EXPECT_EQ(problem.batch, 4);
  EXPECT_EQ(problem.max_seq_k, 80);
  EXPECT_EQ(problem.max_seq_q, 9);
  EXPECT_EQ(problem.table_stride, 5);
}

/// As the bounds of a ragged batch: the most is what a table has room for, and lengths are i32.
TEST(Validate, BoundsOfKeysAreClampedToTheTable) {
  PagedAttentionDesc paged;
  paged.q = paged.out = contiguous(DType::f16, {9, 6, 128});
  paged.k_cache = paged.v_cache = contiguous(DType::f16, {50, 16, 3, 128});
  paged.block_table = contiguous(DType::i32, {4, 5});
  LatentAttentionDesc latent{.q = contiguous(DType::bf16, {4, 1, 16, 576}), .out = contiguous(DType::bf16, {4, 1, 16, 512})};
  latent.block_table = paged.block_table;
  latent.cache.rows = contiguous(DType::bf16, {50, 16, 1, 576});
  const auto expect_bound = [&](std::int64_t max_kv_len, std::int64_t bound) {
    paged.max_kv_len = latent.max_kv_len = max_kv_len;
    EXPECT_EQ(validate(paged, {}).value().max_seq_k, bound);
    EXPECT_EQ(validate(latent, {}).value().max_seq_k, bound);
  };
  expect_bound(0, 80);
  expect_bound(79, 79);
  expect_bound(81, 80);
  expect_bound((std::int64_t{1} << 31) - 1, 80);
  paged.block_table = latent.block_table = contiguous(DType::i32, {4, std::int64_t{1} << 47});
  expect_bound(0, (std::int64_t{1} << 31) - 1);
}

/// Rows are aligned as far as base and strides both allow.
TEST(Validate, RowAlignment) {
  TensorDesc desc = contiguous(DType::bf16, {2, 3, 64});
  desc.alignment = 64;
  EXPECT_EQ(row_alignment(desc), 64);
  desc.strides[1] = 72;  // 144 bytes
  EXPECT_EQ(row_alignment(desc), 16);
  desc.alignment = 0;
  EXPECT_EQ(row_alignment(desc), 2);
}

/// Tensors between the steps of quantize_and_attend lie in the workspace, and fast kernels want 16 bytes.
TEST(Validate, TensorsBetweenStepsAreAligned) {
  const TensorDesc tensor = contiguous(DType::bf16, {2, 5, 8, 64});
  const QuantizeAndAttendDesc desc{.q = tensor, .k = tensor, .v = tensor, .out = tensor};
  const QuantizedAttentionProblem attention = validate(desc, {}).value().attention;
  EXPECT_GE(attention.q_alignment, 16);
  EXPECT_GE(attention.k_alignment, 16);
  EXPECT_GE(attention.v_alignment, 16);
}

/// An output whose elements share memory is refused; gaps, exchanged axes and axes of one element are not.
TEST(Validate, OutputsMustNotOverlap) {
  const auto accepts = [](auto change) {
    AttentionDesc desc = fixed();
    change(desc.out);
    return validate(desc, {}).has_value();
  };
  EXPECT_TRUE(accepts([](TensorDesc& out) { out.strides = {5 * 8 * 40, 8 * 40, 40, 1}; }));
  EXPECT_TRUE(accepts([](TensorDesc& out) { out.strides = {8 * 5 * 32, 32, 5 * 32, 1}; }));
  EXPECT_FALSE(accepts([](TensorDesc& out) { out.strides[1] = 0; }));
  EXPECT_FALSE(accepts([](TensorDesc& out) { out.strides[2] = 31; }));
}

/// A written tensor begins where no other tensor of the call does. Tensors that are only read may share memory.
TEST(Validate, OutputsHaveMemoryOfTheirOwn) {
  alignas(8) const float memory[4]{};
  const float *first = memory, *second = memory + 2;
  const auto error_of = [](auto&&... adds) {
    Pointers pointers;
    (adds(pointers), ...);
    const Result<void> result = pointers.result();
    return result ? std::string() : to_string(result.error());
  };
  const auto read = [](const char* name, const float* at, bool needed = true) {
    return [=](Pointers& pointers) { pointers.read(name, at, needed, 4); };
  };
  const auto written = [](const char* name, const float* at, bool needed = true) {
    return [=](Pointers& pointers) { pointers.written(name, at, needed, 4); };
  };
  EXPECT_EQ(error_of(read("k", first), read("v", first), written("out", second)), "");
  EXPECT_EQ(error_of(read("q", first), written("out", first)), "args.out (address): got that of q, want memory of its own");
  EXPECT_EQ(error_of(written("out", first), read("sink", first)), "args.out (address): got that of sink, want memory of its own");
  EXPECT_EQ(error_of(written("lse", first), written("max_logits", first)),
            "args.lse (address): got that of max_logits, want memory of its own");
  EXPECT_EQ(error_of(read("q", first, false), written("out", first), written("lse", first, false)), "");
}

}  // namespace
}  // namespace fovea::detail
