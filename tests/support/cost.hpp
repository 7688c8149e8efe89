// SPDX-License-Identifier: Apache-2.0
/// Operations and bytes of a call, counted from its definition: the numerator of every rate that benchmarks print.
#pragma once

#include <cstdint>

#include "op/common/attention_core.hpp"
#include "op/common/band.hpp"

namespace fovea::detail {

struct Cost {
  std::int64_t flops = 0;  ///< 2 * visible pairs * (head_dim_qk + head_dim_v) for each head; softmax is not counted
  std::int64_t bytes = 0;  ///< each visible key, each query row and each output row once

  constexpr Cost& operator+=(const Cost& other) {
    flops += other.flops;
    bytes += other.bytes;
    return *this;
  }
  constexpr bool operator==(const Cost&) const = default;
};

/// The cost of one sequence of the batch.
constexpr Cost sequence_cost(const AttentionCore& core, std::int64_t seq_q, std::int64_t seq_k) {
  if (seq_q == 0) return {};
  const Band band = make_band(core.mask, seq_q, seq_k);
  const std::int64_t keys = keys_seen_by_some(band, 0, seq_q, seq_k).size();
  const std::int64_t dims = core.head_dim_qk + core.head_dim_v;
  const std::int64_t q_bytes = seq_q * core.heads * core.head_dim_qk * static_cast<std::int64_t>(size_of(core.q_dtype));
  const std::int64_t out_bytes = seq_q * core.heads * core.head_dim_v * static_cast<std::int64_t>(size_of(core.out_dtype));
  const std::int64_t kv_bytes = keys * core.kv_heads * dims * static_cast<std::int64_t>(size_of(core.kv_dtype));
  return {2 * visible_pairs(band, seq_q, seq_k) * core.heads * dims, q_bytes + out_bytes + kv_bytes};
}

}  // namespace fovea::detail
