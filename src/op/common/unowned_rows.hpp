// SPDX-License-Identifier: Apache-2.0
/// Rows of a ragged batch's outputs that no sequence has.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace fovea::detail {

/// The outputs to fill: out with zeros and lse with -inf. The prefix sums of the lengths lie where the kernels read them.
struct UnownedRows {
  const std::int32_t* cu_seqlens_q = nullptr;
  std::int64_t batch = 0, total = 0;
  std::int64_t bound = 0;  ///< of the lengths, to which a device cuts them
  std::int64_t heads = 0;
  std::byte* out = nullptr;                                     ///< null: stays as it is, like lse
  std::int64_t row_bytes = 0, head_bytes = 0, value_bytes = 0;  ///< from row to row, from head to head, and of one head's values
  float* lse = nullptr;
  std::int64_t lse_row = 0, lse_head = 0;
};

/// Half-open: the rows of a sequence, or what a device leaves out of them.
struct RowRange {
  std::int64_t begin = 0, end = 0;
};

/// The rows before the first sequence and after the last one. Lengths beyond the tensor are cut.
struct OutsideRows {
  std::int64_t begin, end, total;  ///< of the sequences

  constexpr OutsideRows(std::int64_t first, std::int64_t last, std::int64_t total_)
      : begin(std::clamp<std::int64_t>(first, 0, total_)), end(std::clamp(last, begin, total_)), total(total_) {}

  constexpr std::int64_t count() const { return begin + total - end; }
  constexpr std::int64_t at(std::int64_t index) const { return index < begin ? index : end + (index - begin); }
};

/// The rows of a sequence past the bound of lengths.
constexpr RowRange cut_rows(std::int64_t first, std::int64_t last, std::int64_t bound, std::int64_t total) {
  return {std::max<std::int64_t>(first, 0) + bound, std::min(last, total)};
}

}  // namespace fovea::detail
