// SPDX-License-Identifier: Apache-2.0
/// What a launch says of quantised tensors beside the codes themselves.
#pragma once

#include "fovea/quantized_attention.hpp"
#include "op/common/attention_core.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu {

/// Numbers in f32 by batch, row (or group) and head.
struct Numbers {
  const float* data = nullptr;  ///< or null
  detail::RowStrides strides{};
};

struct Codes {
  Numbers q_scale{}, k_scale{};
  Numbers v_scale{}, v_mean{};  ///< by channel
  Numbers lse_shift{};
  Int8Groups groups{};
};

/// Without pointers.
inline Codes codes_of(const detail::QuantizedAttentionProblem& p) {
  return {{nullptr, p.q_scales}, {nullptr, p.k_scales}, {nullptr, p.v_scales}, {nullptr, p.v_means}, {nullptr, p.lse_shift}, p.groups};
}

inline void fill_codes(Codes& codes, const detail::QuantizedAttentionProblem& p, const QuantizedAttentionArgs& args) {
  codes.q_scale.data = args.q_scale;
  codes.k_scale.data = args.k_scale;
  codes.v_scale.data = p.has_v_scale ? args.v_scale : nullptr;
  codes.v_mean.data = p.has_v_mean ? args.v_mean : nullptr;
  codes.lse_shift.data = p.has_lse_shift ? args.lse_shift : nullptr;
}

}  // namespace fovea::gpu
