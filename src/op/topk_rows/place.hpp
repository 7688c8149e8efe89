// SPDX-License-Identifier: Apache-2.0
/// How columns become the entries of a list, and which columns a row has. Backends share it, on the host and on devices.
#pragma once

#include <cstdint>
#include <limits>

#include "op/topk_rows/problem.hpp"

namespace fovea::detail {

/// Half-open.
struct ColumnRange {
  std::int64_t first = 0, last = 0;
  constexpr std::int64_t count() const { return last > first ? last - first : 0; }
};

constexpr ColumnRange columns_of_row(const std::int32_t* first, const std::int32_t* last, std::int64_t row, std::int64_t columns) {
  const std::int64_t begin = first == nullptr ? 0 : first[row], end = last == nullptr ? columns : last[row];
  return {begin > 0 ? begin : 0, end < columns ? end : columns};
}

/// Places of a row's columns.
struct Places {
  const std::int32_t* blocks = nullptr;  ///< of the row's sequence; null without a table
  std::int64_t max_blocks = 0, page = 0;
  std::int64_t offset = 0;

  static constexpr std::int32_t in_list(std::int64_t place) {
    return place < 0 || place > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(place);
  }
  /// `column` counts from the first of the row.
  constexpr std::int32_t of(std::int64_t column) const {
    const std::int64_t token = column + offset;
    if (blocks == nullptr || token < 0) return in_list(token);
    const std::int64_t block = token / page;
    if (block >= max_blocks || blocks[block] < 0) return -1;
    return in_list(blocks[block] * page + (token - block * page));
  }
};

/// Without the pointers that the description does not ask for.
constexpr TopkRowsArgs args_in_use(const TopkRowsProblem& problem, TopkRowsArgs args) {
  if (!problem.has_first) args.first = nullptr;
  if (!problem.has_last) args.last = nullptr;
  if (!problem.has_offset) args.offset = nullptr;
  if (!problem.has_block_table) args.block_table = nullptr;
  return args;
}

/// The places of a row's columns. `args`: those in use.
constexpr Places places_of_row(const TopkRowsProblem& problem, const TopkRowsArgs& args, std::int64_t row) {
  Places places{.offset = args.offset == nullptr ? 0 : args.offset[row]};
  if (args.block_table == nullptr) return places;
  places.blocks = args.block_table + row / (problem.rows / problem.batch) * problem.table_stride;
  places.max_blocks = problem.max_blocks;
  places.page = problem.page;
  return places;
}

}  // namespace fovea::detail
