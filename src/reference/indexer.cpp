// SPDX-License-Identifier: Apache-2.0
#include "reference/indexer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "reference/element.hpp"
#include "reference/implementations.hpp"

namespace fovea::reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/// Whether row `row` sees the key in column `column`.
bool sees(const detail::IndexLogitsProblem& problem, const IndexLogitsArgs& args, std::int64_t row, std::int64_t column) {
  if (!problem.paged) {
    return (!problem.has_first || column >= args.first[row]) && (!problem.has_last || column < args.last[row]);
  }
  const std::int64_t queries = problem.rows_of_sequence(), sequence = row / queries;
  const std::int64_t position = args.kv_len[sequence] - queries + row % queries;
  return column <= position && column / problem.page < problem.max_blocks;
}

/// One logit; NaN for a block that the cache does not have.
double logit(const detail::IndexLogitsProblem& problem, const IndexLogitsArgs& args, std::int64_t row, std::int64_t column) {
  std::int64_t block = column / problem.page;
  const std::int64_t token = column % problem.page;
  if (problem.paged) block = args.block_table[row / problem.rows_of_sequence() * problem.table_stride + block];
  if (block < 0 || block >= problem.blocks) return kNan;
  double sum = 0;
  for (std::int64_t head = 0; head < problem.heads; ++head) {
    double product = 0;
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      product += load(DType::e4m3, args.q, row * problem.q_row + head * problem.q_head + d) *
                 load(DType::e4m3, args.k, block * problem.k_block + token * problem.k_token + d);
    }
    const double part = std::isnan(product) || product > 0 ? product : 0;
    sum += part * static_cast<double>(args.weights[row * problem.weights_row + head]);
  }
  return sum * static_cast<double>(args.k_scale[block * problem.scale_block + token * problem.scale_token]);
}

/// Columns of a row, the largest first. NaN is the least, and among equals the lower column comes first.
std::vector<std::int64_t> ranked(const detail::TopkRowsProblem& problem, const TopkRowsArgs& args, std::int64_t row) {
  std::vector<std::int64_t> columns;
  for (std::int64_t column = 0; column < problem.columns; ++column) {
    if (problem.has_first && column < args.first[row]) continue;
    if (problem.has_last && column >= args.last[row]) continue;
    columns.push_back(column);
  }
  const auto value = [&](std::int64_t column) { return load(problem.dtype, args.logits, row * problem.row_stride + column); };
  std::stable_sort(columns.begin(), columns.end(),
                   [&](std::int64_t a, std::int64_t b) { return std::isnan(value(b)) ? !std::isnan(value(a)) : value(a) > value(b); });
  return columns;
}

std::int32_t place(const detail::TopkRowsProblem& problem, const TopkRowsArgs& args, std::int64_t row, std::int64_t column) {
  std::int64_t token = column;
  if (problem.has_first) token -= std::max<std::int64_t>(args.first[row], 0);
  if (problem.has_offset) token += args.offset[row];
  if (problem.has_block_table && token >= 0) {
    if (token / problem.page >= problem.max_blocks) return -1;
    const std::int64_t sequence = row / (problem.rows / problem.batch);
    const std::int64_t block = args.block_table[sequence * problem.table_stride + token / problem.page];
    token = block < 0 ? -1 : block * problem.page + token % problem.page;
  }
  return token < 0 || token > std::numeric_limits<std::int32_t>::max() ? -1 : static_cast<std::int32_t>(token);
}

Result<void> run_index_logits(const detail::IndexLogitsProblem& problem, const IndexLogitsArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  const IndexLogitsOutput result = index_logits(problem, args);
  for (std::size_t at = 0; at < result.logits.size(); ++at) {
    if (problem.keep_outside && result.seen[at] == 0) continue;
    const auto row = static_cast<std::int64_t>(at) / problem.columns, column = static_cast<std::int64_t>(at) % problem.columns;
    store(problem.out_dtype, args.out, row * problem.out_row + column, result.logits[at]);
  }
  return {};
}

Result<void> run_topk_rows(const detail::TopkRowsProblem& problem, const TopkRowsArgs& args) {
  if (Result<void> good = check_args(problem, args); !good) return good;
  topk_rows(problem, args);
  return {};
}

}  // namespace

IndexLogitsOutput index_logits(const detail::IndexLogitsProblem& problem, const IndexLogitsArgs& args) {
  const auto count = static_cast<std::size_t>(problem.rows * problem.columns);
  IndexLogitsOutput result{std::vector<double>(count, -std::numeric_limits<double>::infinity()), std::vector<char>(count, 0)};
  std::size_t at = 0;
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    for (std::int64_t column = 0; column < problem.columns; ++column, ++at) {
      if (!sees(problem, args, row, column)) continue;
      result.logits[at] = logit(problem, args, row, column);
      result.seen[at] = 1;
    }
  }
  return result;
}

void topk_rows(const detail::TopkRowsProblem& problem, const TopkRowsArgs& args) {
  for (std::int64_t row = 0; problem.k > 0 && row < problem.rows; ++row) {
    std::vector<std::int64_t> columns = ranked(problem, args, row);
    columns.resize(static_cast<std::size_t>(std::min<std::int64_t>(problem.k, std::ssize(columns))));
    if (!problem.sorted) std::sort(columns.begin(), columns.end());
    std::int32_t* list = args.out + row * problem.out_stride;
    std::fill_n(list, problem.k, -1);
    for (std::size_t i = 0; i < columns.size(); ++i) list[i] = place(problem, args, row, columns[i]);
  }
}

detail::Implementations<detail::IndexLogits> implementations(detail::IndexLogits) {
  return only<detail::IndexLogits>("e4m3 q and k, flat or paged; f32 or bf16 out", [](const detail::IndexLogitsProblem& problem, Device) {
    return make_state<detail::IndexLogits>(problem, run_index_logits);
  });
}

detail::Implementations<detail::TopkRows> implementations(detail::TopkRows) {
  return only<detail::TopkRows>("f32, f16, bf16; any k", [](const detail::TopkRowsProblem& problem, Device) {
    return make_state<detail::TopkRows>(problem, run_topk_rows);
  });
}

}  // namespace fovea::reference
