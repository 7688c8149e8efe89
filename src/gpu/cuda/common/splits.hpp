// SPDX-License-Identifier: Apache-2.0
/// Where kernels leave partial results when the keys of their query tiles are split; combine_splits.cuh merges them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "op/common/attention_core.hpp"

namespace fovea::gpu {

/// Partial results of a batch that is not ragged, and where the results go.
struct Splits {
  int count = 1;          ///< at most 32
  std::int64_t rows = 0;  ///< of the whole batch
  int seq_q = 0, heads = 0, head_dim_v = 0;
  float *out = nullptr, *lse = nullptr;  ///< [split][row][head] ([head_dim_v]); normalised, lse in natural units
  const float* sink = nullptr;           ///< [heads], or null
  void* result = nullptr;
  detail::RowStrides result_strides{};
  float* result_lse = nullptr;  ///< or null
  detail::RowStrides lse_strides{};

  constexpr std::int64_t cells() const { return rows * heads; }
  /// Of the partial results.
  constexpr std::size_t bytes() const {
    return count > 1 ? static_cast<std::size_t>(count * cells() * (head_dim_v + 1)) * sizeof(float) : 0;
  }
  /// Number of a row and head among all partial results.
  constexpr std::int64_t cell(int split, std::int64_t row, int head) const { return (split * rows + row) * heads + head; }
};

}  // namespace fovea::gpu
