// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fovea/quantized_attention.hpp"
#include "op/attention/problem.hpp"

namespace fovea::detail {

/// The sequences of a batch whose tokens are quantised.
struct TokenBatch {
  bool ragged = false;
  std::int64_t batch = 0, total_q = 0, total_k = 0;
  std::int64_t max_seq_q = 0, max_seq_k = 0;
  std::optional<BandMask> mask{};  ///< keys that no row sees are not read; without one, all are
};

/// One tensor and its quantised twin. `scale` is a row's stride between groups (RowStrides::row); for V between sequences and heads.
struct QuantizedTensor {
  DType dtype{}, to_dtype{};
  std::int64_t heads = 0, head_dim = 0;
  RowStrides from{}, to{}, scale{}, mean{};
  bool has_scale = false, has_mean = false;
  std::int32_t from_alignment = 0, to_alignment = 0;
};

struct QuantizeQkInt8Problem : TokenBatch {
  QuantizedTensor q{}, k{};
  RowStrides lse_shift{};
  bool has_lse_shift = false;
  Int8Groups groups{};
};

struct QuantizeVProblem : TokenBatch {
  QuantizedTensor v{};
};

/// q_dtype and kv_dtype are i8; v has a dtype of its own.
struct QuantizedAttentionProblem : AttentionProblem {
  DType v_dtype{};
  Int8Groups groups{};
  RowStrides q_scales{}, k_scales{}, v_scales{}, v_means{}, lse_shift{};
  bool has_v_scale = false, has_v_mean = false, has_lse_shift = false;
};

/// The steps of the whole, on dense tensors between them.
struct QuantizeAndAttendProblem {
  AttentionProblem whole{};  ///< as the caller sees it
  QuantizeQkInt8Problem qk{};
  QuantizeVProblem v{};
  QuantizedAttentionProblem attention{};
  /// Elements of the tensors between the steps; 0 where there is none.
  std::int64_t q_int8 = 0, k_int8 = 0, q_scale = 0, k_scale = 0, k_mean = 0, lse_shift = 0, v_bytes = 0, v_scale = 0, v_mean = 0;
};

}  // namespace fovea::detail
