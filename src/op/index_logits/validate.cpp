// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/checks.hpp"
#include "op/index_logits/fields.hpp"
#include "op/index_logits/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 3> kQAxes{"row", "head", "head_dim"}, kCacheAxes{"block", "page", "head_dim"};
constexpr std::array<std::string_view, 2> kKAxes{"token", "head_dim"}, kScaleAxes{"block", "page"}, kWeightAxes{"row", "head"};
constexpr std::array<std::string_view, 1> kFlatScaleAxes{"token"};
constexpr std::array<std::string_view, 2> kOutAxes{"row", "column"}, kTableAxes{"batch", "max_blocks"};
constexpr std::array kCodes{DType::e4m3}, kNumbers{DType::f32}, kIndices{DType::i32};
constexpr std::int64_t kMostKeys = std::int64_t{1} << 31;

struct Tensors {
  NamedTensor q, k, k_scale, weights, out;
};

void check_flat(Checker& check, const IndexLogitsDesc& desc, const Tensors& t) {
  check_extent(check, t.k_scale, 0, t.k.desc.shape[0], "tokens of k");
  check_extent(check, t.out, 1, t.k.desc.shape[0], "tokens of k");
  check.expect(!desc.has_kv_len, "kv_len", "a value", "none without a block_table (first and last say what rows see)");
}

void check_paged(Checker& check, const IndexLogitsDesc& desc, const Tensors& t) {
  const NamedTensor table{"block_table", *desc.block_table, kTableAxes};
  check_tensor(check, table);
  check_dtype(check, table, kIndices);
  check_extent(check, t.k_scale, 0, t.k.desc.shape[0], "blocks of k");
  check_extent(check, t.k_scale, 1, t.k.desc.shape[1], "page of k");
  if (!check.ok()) return;
  const std::int64_t rows = t.q.desc.shape[0], batch = desc.block_table->shape[0];
  const std::int64_t page = t.k.desc.shape[1], max_blocks = desc.block_table->shape[1];
  check.expect(page >= 1 && page < kMostKeys, "k.shape[1] (page)", page, "1 to 2^31 - 1");
  check.expect(max_blocks < kMostKeys, "block_table.shape[1] (max_blocks)", max_blocks, "less than 2^31");
  check.expect(batch > 0 ? rows % batch == 0 : rows == 0, "q.shape[0] (row)", rows, "a multiple of block_table.shape[0] (batch)");
  check.expect(desc.has_kv_len, "kv_len", "none", "a tensor with a block_table");
  check.expect(!desc.has_first, "first", "a value", "none with a block_table (kv_len says what rows see)");
  check.expect(!desc.has_last, "last", "a value", "none with a block_table (kv_len says what rows see)");
}

void check_all(Checker& check, const Tensors& t) {
  constexpr std::array kOutputs{DType::f32, DType::bf16};
  for (const NamedTensor* tensor : {&t.q, &t.k, &t.k_scale, &t.weights, &t.out}) check_tensor(check, *tensor);
  check_values(check, t.q, kCodes);
  check_values(check, t.k, kCodes);
  check_dtype(check, t.k_scale, kNumbers);
  check_dtype(check, t.weights, kNumbers);
  check_dtype(check, t.out, kOutputs);
  if (!check.ok()) return;
  const std::int64_t dim = t.q.desc.shape[2];
  check.expect(dim == 64 || dim == 128, "q.shape[2] (head_dim)", dim, "64 or 128");
  check.expect(t.q.desc.shape[1] >= 1, "q.shape[1] (head)", t.q.desc.shape[1], "1 or more");
  check.expect(t.out.desc.shape[1] < kMostKeys, "out.shape[1] (column)", t.out.desc.shape[1], "less than 2^31");
  check.expect(t.k.desc.shape[0] < kMostKeys, "k.shape[0]", t.k.desc.shape[0], "less than 2^31");
  check_extent(check, t.k, t.k.desc.rank - 1, dim, "head_dim of q");
  check_extent(check, t.weights, 0, t.q.desc.shape[0], "rows of q");
  check_extent(check, t.weights, 1, t.q.desc.shape[1], "head of q");
  check_extent(check, t.out, 0, t.q.desc.shape[0], "rows of q");
}

IndexLogitsProblem normalise(const IndexLogitsDesc& desc) {
  IndexLogitsProblem problem;
  problem.out_dtype = desc.out.dtype;
  problem.rows = desc.q.shape[0];
  problem.heads = desc.q.shape[1];
  problem.head_dim = desc.q.shape[2];
  problem.columns = desc.out.shape[1];
  problem.q_row = desc.q.strides[0];
  problem.q_head = desc.q.strides[1];
  problem.weights_row = desc.weights.strides[0];
  problem.out_row = desc.out.strides[0];
  problem.blocks = desc.k.shape[0];
  problem.k_block = desc.k.strides[0];
  problem.scale_block = desc.k_scale.strides[0];
  problem.paged = desc.block_table.has_value();
  if (desc.block_table) {
    problem.page = desc.k.shape[1];
    problem.k_token = desc.k.strides[1];
    problem.scale_token = desc.k_scale.strides[1];
    problem.batch = desc.block_table->shape[0];
    problem.max_blocks = desc.block_table->shape[1];
    problem.table_stride = desc.block_table->strides[0];
  }
  problem.has_first = desc.has_first;
  problem.has_last = desc.has_last;
  problem.has_kv_len = desc.has_kv_len;
  problem.keep_outside = desc.keep_outside;
  problem.q_base_alignment = base_alignment(desc.q);
  problem.k_base_alignment = base_alignment(desc.k);
  problem.out_base_alignment = base_alignment(desc.out);
  problem.q_alignment = row_alignment(desc.q);
  problem.k_alignment = row_alignment(desc.k);
  problem.extents = extents_of(kIndexLogitsFields, desc);
  return problem;
}

}  // namespace

Result<IndexLogitsProblem> validate(const IndexLogitsDesc& desc, const PlanOptions&) {
  const bool paged = desc.block_table.has_value();
  const std::span<const std::string_view> k_axes = paged ? std::span<const std::string_view>(kCacheAxes) : kKAxes;
  const std::span<const std::string_view> scale_axes = paged ? std::span<const std::string_view>(kScaleAxes) : kFlatScaleAxes;
  const Tensors tensors{.q = {"q", desc.q, kQAxes},
                        .k = {"k", desc.k, k_axes},
                        .k_scale = {"k_scale", desc.k_scale, scale_axes},
                        .weights = {"weights", desc.weights, kWeightAxes},
                        .out = {"out", desc.out, kOutAxes, true}};
  Checker check;
  check_all(check, tensors);
  if (check.ok()) paged ? check_paged(check, desc, tensors) : check_flat(check, desc, tensors);
  if (!check.ok()) return check.error();
  return normalise(desc);
}

Result<void> check_args(const IndexLogitsProblem& problem, const IndexLogitsArgs& args) {
  return check_pointers(kIndexLogitsFields, problem, args);
}

}  // namespace fovea::detail
