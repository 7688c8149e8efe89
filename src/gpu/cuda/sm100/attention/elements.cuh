// SPDX-License-Identifier: Apache-2.0
/// 16-bit elements as words of registers, and the exponential of gpu/common/softmax.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "gpu/cuda/sm100/exp2.cuh"

namespace fovea::gpu::sm100::attention {

/// Rounds two neighbours, the first to the low half.
template <class Element>
__device__ inline std::uint32_t pack(float2 x) {
  std::uint32_t word;
  if constexpr (std::is_same_v<Element, __half>) {
    const __half2 pair = __floats2half2_rn(x.x, x.y);
    std::memcpy(&word, &pair, sizeof word);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x.x, x.y);
    std::memcpy(&word, &pair, sizeof word);
  }
  return word;
}

/// A thread has a row, so nothing is reduced over lanes.
struct OneRow {
  static __device__ float exp2(float x) { return exp2_by_unit(x); }
};

}  // namespace fovea::gpu::sm100::attention
