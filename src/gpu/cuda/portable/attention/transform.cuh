// SPDX-License-Identifier: Apache-2.0
/// What becomes of a score before the mask, where the call has a softcap or a negative scale.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/attention/params.hpp"

namespace fovea::gpu::portable::attention {

/// tanh(t), where `twice_log2` is 2 t log2(e). Its error is relative, so that any softcap may follow.
__device__ inline float tanh_of(float twice_log2) {
  constexpr float kHalfLn2 = 0.5f * kLn2, kSmall = 0.125f;
  const float t = twice_log2 * kHalfLn2, square = t * t;
  // Taylor's series, whose next term is below 2^-29 of the sum.
  const float small = t * fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
  const float large = 1 - __fdividef(2, Warp::exp2(twice_log2) + 1);
  return fabsf(t) < kSmall ? small : large;
}

__device__ inline float capped(const Params& params, float score) { return params.softcap * tanh_of(score * params.inv_softcap); }

/// What becomes of any score.
__device__ inline float transformed(const Params& params, float score) {
  if (!params.transform) return score;
  return params.softcap == 0 ? score * params.scale : capped(params, score);
}

}  // namespace fovea::gpu::portable::attention
