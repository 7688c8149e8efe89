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

/// Quotients of 16-bit floats by one scale, with the e4m3 values of correctly rounded ones. The reciprocal has two parts, both of the
/// scale's sign, so that a quotient is off by 2^-12 of its last place. Such a quotient comes that close to where its e4m3 value changes
/// only if all bits of the scale's significand are set.
class ShortDivisor {
 public:
  __device__ static bool covers(float scale) {
    const float size = fabsf(scale);
    return size >= 0x1p-100f && size <= 0x1p100f && (~__float_as_uint(scale) & 0x7fffffu) != 0;
  }

  __device__ explicit ShortDivisor(float scale) : high_(1.0f / scale) {
    if (fmaf(-scale, high_, 1.0f) < 0.0f) high_ = __uint_as_float(__float_as_uint(high_) - 1);  // towards 0
    low_ = fmaf(-scale, high_, 1.0f) * high_;
  }

  __device__ float divide(float value) const {
    constexpr float kLarge = 0x1p100f;  // an infinity times low_ is no number where low_ is 0
    return fmaf(value, high_, fminf(fmaxf(value * low_, -kLarge), kLarge));
  }

 private:
  float high_, low_;
};

}  // namespace fovea::gpu
