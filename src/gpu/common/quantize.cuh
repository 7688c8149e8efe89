// SPDX-License-Identifier: Apache-2.0
/// Numbers divided by a scale and rounded to e4m3, as the formats define it: the quotient is rounded to f32 first.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::gpu {

/// The nearest e4m3 values, ties to even, saturating.
__device__ inline std::uint32_t e4m3_codes(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

/// Quotients by one scale, rounded so that their e4m3 values are those of correctly rounded quotients. One step of refinement suffices for
/// all f32 values and scales: the quotients next to midpoints of e4m3 values are few enough to try all. Tiny and huge scales are lifted, so
/// that the excess is exact. The lift has the sign of the scale, which keeps the signs of zeros. An infinite scale leaves no excess.
class Divisor {
 public:
  __device__ explicit Divisor(float scale) {
    const float size = fabsf(scale), lift = size < 0x1p-64f ? 0x1p100f : size > 0x1p64f ? 0x1p-100f : 1.0f;
    lift_ = copysignf(lift, scale);
    scale_ = isinf(size) ? 0.0f : size * lift;
    inverse_ = 1.0f / (size * lift);
  }

  __device__ float divide(float value) const {
    const float lifted = value * lift_, first = lifted * inverse_;
    const float excess = fmaf(scale_, first, -lifted);
    // An infinity has no excess, and quotients this large saturate.
    return fabsf(first) < 512.0f ? fmaf(-excess, inverse_, first) : first;
  }

 private:
  float lift_, scale_, inverse_;
};

}  // namespace fovea::gpu
