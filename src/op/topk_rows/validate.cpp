// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "op/common/checks.hpp"
#include "op/topk_rows/fields.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 2> kLogitAxes{"row", "column"}, kListAxes{"row", "k"}, kTableAxes{"batch", "max_blocks"};
constexpr std::array kIndices{DType::i32};
constexpr std::int64_t kMostPlaces = std::int64_t{1} << 31;

void check_table(Checker& check, const TopkRowsDesc& desc) {
  if (!desc.block_table) return check.expect(desc.page == 0, "page", desc.page, "0 without a block_table");
  const NamedTensor table{"block_table", *desc.block_table, kTableAxes};
  check_tensor(check, table);
  check_dtype(check, table, kIndices);
  check.expect(desc.page >= 1 && desc.page < kMostPlaces, "page", desc.page, "1 to 2^31 - 1 with a block_table");
  if (!check.ok()) return;
  const std::int64_t rows = desc.logits.shape[0], batch = desc.block_table->shape[0];
  check.expect(batch > 0 ? rows % batch == 0 : rows == 0, "logits.shape[0] (row)", rows, "a multiple of block_table.shape[0] (batch)");
}

TopkRowsProblem normalise(const TopkRowsDesc& desc) {
  TopkRowsProblem problem;
  problem.dtype = desc.logits.dtype;
  problem.rows = desc.logits.shape[0];
  problem.columns = desc.logits.shape[1];
  problem.k = desc.out.shape[1];
  problem.row_stride = desc.logits.strides[0];
  problem.out_stride = desc.out.strides[0];
  problem.has_first = desc.has_first;
  problem.has_last = desc.has_last;
  problem.has_offset = desc.has_offset;
  problem.has_block_table = desc.block_table.has_value();
  problem.sorted = desc.sorted;
  problem.page = desc.page;
  if (desc.block_table) {
    problem.batch = desc.block_table->shape[0];
    problem.max_blocks = desc.block_table->shape[1];
    problem.table_stride = desc.block_table->strides[0];
  }
  problem.base_alignment = base_alignment(desc.logits);
  problem.row_alignment = row_alignment(desc.logits);
  problem.extents = extents_of(kTopkRowsFields, desc);
  return problem;
}

}  // namespace

Result<TopkRowsProblem> validate(const TopkRowsDesc& desc, const PlanOptions&) {
  constexpr std::array kValues{DType::f32, DType::f16, DType::bf16};
  const NamedTensor logits{"logits", desc.logits, kLogitAxes}, out{"out", desc.out, kListAxes, true};
  Checker check;
  check_tensor(check, logits);
  check_tensor(check, out);
  check_values(check, logits, kValues);
  check_dtype(check, out, kIndices);
  check_extent(check, out, 0, desc.logits.shape[0], "rows of logits");
  check.expect(!check.ok() || desc.logits.shape[1] < kMostPlaces, "logits.shape[1] (column)", desc.logits.shape[1],
               "less than 2^31 (places are i32)");
  if (check.ok()) check_table(check, desc);
  if (!check.ok()) return check.error();
  return normalise(desc);
}

Result<void> check_args(const TopkRowsProblem& problem, const TopkRowsArgs& args) { return check_pointers(kTopkRowsFields, problem, args); }

}  // namespace fovea::detail
