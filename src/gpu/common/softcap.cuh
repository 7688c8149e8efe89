// SPDX-License-Identifier: Apache-2.0
/// Softcaps.
#pragma once

#include "gpu/common/softmax.cuh"

namespace fovea::gpu {

struct Softcap {
  float scale, cap;  // of a product of q and k
  float inv_cap;     // 2 log2(e) scale / cap; 0 where a float ends

  struct Capped {
    float score, tanh;  // cap * tanh(product * scale / cap), and this tanh
  };
  /// Small scores are multiplied by a number near 1, so that they bear any cap. `Lanes`: as in softmax.cuh.
  template <class Lanes>
  __device__ Capped operator()(float product) const {
    constexpr float kHalfLn2 = 0.5f * kLn2, kSmall = 0.125f;
    const float twice_log2 = product * inv_cap, t = twice_log2 * kHalfLn2, square = t * t;
    // Taylor's series, whose next term is below 2^-29 of the sum.
    const float near_one = fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
    const float large = 1 - Lanes::quotient(2, Lanes::exp2(twice_log2) + 1);
    const bool small = fabsf(t) < kSmall;
    return {small ? product * scale * near_one : cap * large, small ? t * near_one : large};
  }
};

}  // namespace fovea::gpu
