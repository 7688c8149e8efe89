// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "fovea/indexer.hpp"
#include "op/common/extent.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

struct TopkRowsProblem {
  DType dtype{};
  std::int64_t rows = 0, columns = 0, k = 0;
  std::int64_t row_stride = 0, out_stride = 0;
  bool has_first = false, has_last = false, has_offset = false, has_block_table = false, sorted = false;
  std::int64_t batch = 0, max_blocks = 0, table_stride = 0, page = 0;  ///< of a block table
  std::int32_t base_alignment = 0, row_alignment = 0;                  ///< bytes, of logits
  Extents extents{};
};

inline constexpr std::array kTopkRowsOptions{
    Option<TopkRowsProblem>{"first", [](const TopkRowsProblem& p) { return p.has_first; }},
    Option<TopkRowsProblem>{"last", [](const TopkRowsProblem& p) { return p.has_last; }},
    Option<TopkRowsProblem>{"offset", [](const TopkRowsProblem& p) { return p.has_offset; }},
    Option<TopkRowsProblem>{"block_table", [](const TopkRowsProblem& p) { return p.has_block_table; }},
    Option<TopkRowsProblem>{"sorted", [](const TopkRowsProblem& p) { return p.sorted; }}};

/// The only maker of a TopkRowsProblem.
Result<TopkRowsProblem> validate(const TopkRowsDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and the list apart from all else. Looks at no data.
Result<void> check_args(const TopkRowsProblem& problem, const TopkRowsArgs& args);

}  // namespace fovea::detail
