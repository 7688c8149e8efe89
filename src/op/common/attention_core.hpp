// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/mask.hpp"
#include "fovea/tensor.hpp"

namespace fovea::detail {

/// Strides in elements of a tensor seen as (batch, row, head, element); the element stride is 1. Ragged tensors have batch 0.
struct RowStrides {
  std::int64_t batch = 0, row = 0, head = 0;
};

/// What dense and paged attention have in common once they are validated.
struct AttentionCore {
  DType q_dtype{}, kv_dtype{}, out_dtype{};
  std::int64_t batch = 0;
  std::int64_t total_q = 0;    ///< rows of q over the whole batch
  std::int64_t max_seq_q = 0;  ///< the length of each sequence, or its bound when ragged
  std::int64_t max_seq_k = 0;
  std::int64_t heads = 0, kv_heads = 0, head_dim_qk = 0, head_dim_v = 0;
  RowStrides q{}, out{}, lse{};
  BandMask mask{};
  double scale = 0.0;    ///< resolved: never 0; an f32 value unless q is f64, as softcap is
  double softcap = 0.0;  ///< 0: none
  bool has_lse = false, has_sink = false, batch_invariant = false;
  std::optional<ScaleDesc> k_scale{}, v_scale{};
  /// Bytes to which run()'s pointers must be aligned, and to which every row then is.
  std::int32_t q_base_alignment = 0, k_base_alignment = 0, v_base_alignment = 0, out_base_alignment = 0;
  std::int32_t q_alignment = 0, k_alignment = 0, v_alignment = 0, out_alignment = 0;

  /// Query heads that share one kv head: head h reads kv head h / group().
  constexpr std::int64_t group() const { return heads / kv_heads; }
};

}  // namespace fovea::detail
