// SPDX-License-Identifier: Apache-2.0
/// Parameters of the 8-bit kernel.
#pragma once

#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/portable/attention/params.hpp"

namespace fovea::gpu::portable::quantized_attention {

/// Without splits, and with one query head in a query tile. `scale_log2` may be negative.
struct Params : attention::Params {
  Codes codes{};
  DType out_dtype{};
};

}  // namespace fovea::gpu::portable::quantized_attention
