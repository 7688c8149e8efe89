// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "fovea/indexer.hpp"
#include "op/common/extent.hpp"
#include "op/common/option.hpp"

namespace fovea::detail {

/// The fields that kernels need. Strides count elements.
struct IndexLogitsShape {
  std::int64_t rows = 0, heads = 0, head_dim = 0, columns = 0;
  std::int64_t q_row = 0, q_head = 0, weights_row = 0, out_row = 0;
  std::int64_t blocks = 0, page = 1;  ///< of a flat k: its tokens, in pages of 1
  std::int64_t k_block = 0, k_token = 0, scale_block = 0, scale_token = 0;
  bool paged = false, keep_outside = false;
  std::int64_t batch = 0, max_blocks = 0, table_stride = 0;  ///< of a block table

  constexpr std::int64_t rows_of_sequence() const { return batch > 0 ? rows / batch : rows; }
};

struct IndexLogitsProblem : IndexLogitsShape {
  DType out_dtype{};
  bool has_first = false, has_last = false, has_kv_len = false;
  std::int32_t q_base_alignment = 0, k_base_alignment = 0, out_base_alignment = 0;
  std::int32_t q_alignment = 0, k_alignment = 0;  ///< bytes, of every row
  Extents extents{};
};

inline constexpr std::array kIndexLogitsOptions{
    Option<IndexLogitsProblem>{"block_table", [](const IndexLogitsProblem& p) { return p.paged; }},
    Option<IndexLogitsProblem>{"first", [](const IndexLogitsProblem& p) { return p.has_first; }},
    Option<IndexLogitsProblem>{"last", [](const IndexLogitsProblem& p) { return p.has_last; }},
    Option<IndexLogitsProblem>{"keep_outside", [](const IndexLogitsProblem& p) { return p.keep_outside; }}};

/// The only maker of an IndexLogitsProblem.
Result<IndexLogitsProblem> validate(const IndexLogitsDesc& desc, const PlanOptions& options);

/// Pointers of run(): present where the description asks for them, aligned, and the logits apart from all else. Looks at no data.
Result<void> check_args(const IndexLogitsProblem& problem, const IndexLogitsArgs& args);

}  // namespace fovea::detail
