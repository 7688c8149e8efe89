// SPDX-License-Identifier: Apache-2.0
/// The way of a logit from the sums of lanes to memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::indexer {

/// The sum of a over this lane and the one at a distance if the lane is the first of them, else that of b.
template <int kDistance>
__device__ __forceinline__ float exchanged(int lane, float a, float b) {
  const bool second = (lane & kDistance) != 0;
  return (second ? b : a) + __shfl_xor_sync(~0u, second ? a : b, kDistance);
}

/// `at`: elements from the first logit.
__device__ inline void store_logit_at(const Params& params, std::int64_t at, float logit) {
  if (params.bf16_out) {
    static_cast<__nv_bfloat16*>(params.args.out)[at] = __float2bfloat16(logit);
  } else {
    static_cast<float*>(params.args.out)[at] = logit;
  }
}
__device__ inline void store_logit(const Params& params, std::int64_t row, int column, float logit) {
  store_logit_at(params, row * params.shape.out_row + column, logit);
}

}  // namespace fovea::gpu::sm90::indexer
