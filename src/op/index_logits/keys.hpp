// SPDX-License-Identifier: Apache-2.0
/// Which keys a query sees, and where they lie. Backends share it, on the host and on devices.
#pragma once

#include <cstdint>

#include "op/index_logits/problem.hpp"

namespace fovea::detail {

/// Half-open range of columns; begin = end where a row sees none.
struct KeyRange {
  std::int64_t begin = 0, end = 0;
};

/// From `begin` to before `end`, cut to [0, columns].
constexpr KeyRange cut_range(std::int64_t begin, std::int64_t end, std::int64_t columns) {
  if (begin < 0) begin = 0;
  if (end > columns) end = columns;
  return begin < end ? KeyRange{begin, end} : KeyRange{};
}

/// Without the pointers that the description does not ask for.
constexpr IndexLogitsArgs args_in_use(const IndexLogitsProblem& problem, IndexLogitsArgs args) {
  if (!problem.has_first) args.first = nullptr;
  if (!problem.has_last) args.last = nullptr;
  if (!problem.paged) args.block_table = nullptr, args.kv_len = nullptr;
  return args;
}

/// The keys that a row sees. `args`: those in use.
constexpr KeyRange keys_of_row(const IndexLogitsShape& problem, const IndexLogitsArgs& args, std::int64_t row) {
  if (!problem.paged) {
    return cut_range(args.first == nullptr ? 0 : args.first[row], args.last == nullptr ? problem.columns : args.last[row], problem.columns);
  }
  const std::int64_t queries = problem.rows_of_sequence(), end = args.kv_len[row / queries] - queries + row % queries + 1;
  const std::int64_t room = problem.max_blocks * problem.page;
  return cut_range(0, end, room < problem.columns ? room : problem.columns);
}

/// Elements from the start of k and of its scales. Not known where a table names a block that the cache does not have.
struct KeyPlace {
  bool known = false;
  std::int64_t k = 0, scale = 0;
};

constexpr KeyPlace place_of_key(const IndexLogitsShape& problem, const IndexLogitsArgs& args, std::int64_t row, std::int64_t column) {
  if (!problem.paged) return {true, column * problem.k_block, column * problem.scale_block};
  const std::int64_t block = args.block_table[row / problem.rows_of_sequence() * problem.table_stride + column / problem.page];
  const std::int64_t token = column % problem.page;
  if (block < 0 || block >= problem.blocks) return {};
  return {true, block * problem.k_block + token * problem.k_token, block * problem.scale_block + token * problem.scale_token};
}

}  // namespace fovea::detail
