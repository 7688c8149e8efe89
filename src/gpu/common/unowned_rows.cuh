// SPDX-License-Identifier: Apache-2.0
/// Fills the rows of a ragged batch's outputs that no sequence has. Most calls have none: each group reads two numbers and ends.
#pragma once

#include "gpu/common/unowned_rows.hpp"

namespace fovea::gpu {

/// By `threads` of them, of which this is one.
template <class Word>
__device__ inline void fill_row(const detail::UnownedRows& rows, std::int64_t row, unsigned thread, unsigned threads) {
  const auto words = static_cast<unsigned>(rows.value_bytes / static_cast<std::int64_t>(sizeof(Word)));
  const auto heads = static_cast<unsigned>(rows.heads);
  for (unsigned i = thread; rows.out != nullptr && i < heads * words; i += threads) {
    auto* const values = reinterpret_cast<Word*>(rows.out + row * rows.row_bytes + std::int64_t{i / words} * rows.head_bytes);
    values[i % words] = Word{};
  }
  for (unsigned head = thread; rows.lse != nullptr && head < heads; head += threads) {
    rows.lse[row * rows.lse_row + std::int64_t{head} * rows.lse_head] = -INFINITY;
  }
}

/// The part of one thread: `group` of `groups`, and its place in the group.
template <class Word>
__device__ inline void fill_part(const detail::UnownedRows& rows, unsigned group, unsigned groups, unsigned thread) {
  const detail::OutsideRows outside(rows.cu_seqlens_q[0], rows.cu_seqlens_q[rows.batch], rows.total);
  for (std::int64_t i = group; i < outside.count(); i += groups) fill_row<Word>(rows, outside.at(i), thread, kFillThreads);
  // A sequence over its bound contradicts the plan. One thread is enough for that.
  for (std::int64_t b = std::int64_t{group} * kFillThreads + thread; b < rows.batch; b += std::int64_t{groups} * kFillThreads) {
    const detail::RowRange cut = detail::cut_rows(rows.cu_seqlens_q[b], rows.cu_seqlens_q[b + 1], rows.bound, rows.total);
    for (std::int64_t row = cut.begin; row < cut.end; ++row) fill_row<Word>(rows, row, 0, 1);
  }
}

}  // namespace fovea::gpu
