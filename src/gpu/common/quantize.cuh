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

/// Quotients by one scale, correctly rounded where their e4m3 value depends on it. The steps are those of the compiler's division, with the
/// reciprocal computed once. Tiny scales are lifted, so that the remainders below are exact. An infinite scale leaves no remainder.
class Divisor {
 public:
  __device__ explicit Divisor(float scale)
      : lift_(fabsf(scale) < 0x1p-80f ? 0x1p100f : 1.0f), scale_(isinf(scale) ? 0.0f : scale * lift_), inverse_(1.0f / (scale * lift_)) {}

  __device__ float divide(float value) const {
    const float lifted = value * lift_, first = lifted * inverse_;
    const float second = fmaf(fmaf(-scale_, first, lifted), inverse_, first);
    const float third = fmaf(fmaf(-scale_, second, lifted), inverse_, second);
    // An infinity has no remainder, quotients this large saturate, and a remainder of 0 has lost the sign.
    return fabsf(first) < 512.0f ? copysignf(third, first) : first;
  }

 private:
  float lift_, scale_, inverse_;
};

}  // namespace fovea::gpu
