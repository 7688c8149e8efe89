// SPDX-License-Identifier: Apache-2.0
/// The hyperbolic tangent of a softcap.
#pragma once

#include "gpu/common/softmax.cuh"

namespace fovea::gpu {

/// tanh(t), where `twice_log2` is 2 t log2(e). Its error is relative, so that any softcap may follow. `Lanes`: as in softmax.cuh.
template <class Lanes>
__device__ inline float tanh_of(float twice_log2) {
  constexpr float kHalfLn2 = 0.5f * kLn2, kSmall = 0.125f;
  const float t = twice_log2 * kHalfLn2, square = t * t;
  // Taylor's series, whose next term is below 2^-29 of the sum.
  const float small = t * fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  const float large = 1 - Lanes::quotient(2, Lanes::exp2(twice_log2) + 1);
  return fabsf(t) < kSmall ? small : large;
}

}  // namespace fovea::gpu
