// SPDX-License-Identifier: Apache-2.0
/// What a launch passes to the 8-bit kernel.
#pragma once

#include "gpu/cuda/common/quantized/codes.hpp"
#include "gpu/cuda/sm90/attention/params.hpp"

namespace fovea::gpu::sm90::quantized_attention {

/// Of a plan for dense attention without splits, and with one query head in a query tile. `scale_log2` may be negative.
struct Params : attention::Params {
  Codes codes{};
  std::int64_t key_block_stride = 0;  ///< of k_scale, between blocks of keys
  DType out_dtype{};
};

}  // namespace fovea::gpu::sm90::quantized_attention
