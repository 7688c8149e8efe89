// SPDX-License-Identifier: Apache-2.0
/// Fields that the kernels of dense attention share, forward and backward; partial results of split keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/mask.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu {

/// Lengths are bounds of a ragged batch.
struct AttentionParams {
  int batch = 0;
  int seq_q = 0;
  int seq_k = 0;
  int heads = 0;
  int heads_per_kv = 1;
  int head_dim_qk = 0;
  int head_dim_v = 0;
  const std::int32_t* cu_seqlens_q = nullptr;  ///< [batch + 1], of a ragged batch
  const std::int32_t* cu_seqlens_k = nullptr;  ///< likewise
  BandMask mask{};
  float scale = 1;
  float scale_log2 = 0;         ///< factor of the scores in the softmax; includes log2(e)
  float softcap = 0;            ///< 0: none
  float inv_softcap = 0;        ///< 2 log2(e) scale / softcap
  const float* sink = nullptr;  ///< [heads], or null
};

/// Partial results of a batch that is not ragged, where the keys of query tiles are split, and the results that
/// combine_splits.cuh makes of them.
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

  /// Rows times heads.
  constexpr std::int64_t cells() const { return rows * heads; }
  /// Bytes of the partial results.
  constexpr std::size_t bytes() const {
    return count > 1 ? static_cast<std::size_t>(count * cells() * (head_dim_v + 1)) * sizeof(float) : 0;
  }
  /// Index of a row and head among all partial results.
  constexpr std::int64_t cell(int split, std::int64_t row, int head) const { return (split * rows + row) * heads + head; }
};

}  // namespace fovea::gpu
