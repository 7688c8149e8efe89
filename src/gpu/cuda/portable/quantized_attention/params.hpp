// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the 8-bit kernel.
#pragma once

#include "fovea/quantized_attention.hpp"
#include "gpu/cuda/portable/attention/params.hpp"

namespace fovea::gpu::portable::quantized_attention {

/// Numbers in f32 by batch, row (or group) and head.
struct Numbers {
  const float* data = nullptr;  ///< or null
  detail::RowStrides strides{};
};

/// Of a plan for dense attention without splits, and with one query head in a query tile. `scale_log2` may be negative.
struct Params : attention::Params {
  Numbers q_scale{}, k_scale{};
  Numbers v_scale{}, v_mean{};  ///< by channel
  Numbers lse_shift{};
  Int8Groups groups{};
  DType out_dtype{};
};

}  // namespace fovea::gpu::portable::quantized_attention
