// SPDX-License-Identifier: Apache-2.0
/// Quantised values and numbers: e4m3, e2m1 and ue8m0 to floats and halves, exactly; floats to e4m3, divided by a scale.
/// The formats define the quotient as rounded to f32 first.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::gpu {

/// Two e4m3 codes (the low 16 bits) as two halves.
__device__ inline std::uint32_t halves_from_e4m3(std::uint32_t codes) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return halves.x | static_cast<std::uint32_t>(halves.y) << 16;
}

inline constexpr float kE2m1Unit = 16384.0f;  // factor of the halves below

/// Two e2m1 codes (the low 8 bits, the first in the low nibble) as two halves. The e2m1 exponent and mantissa are the lowest ones of a
/// half.
__device__ inline std::uint32_t halves_from_e2m1(std::uint32_t codes) {
  const std::uint32_t apart = (codes & 0xf) | (codes & 0xf0) << 12;
  return (apart & 0x00070007) << 9 | (apart & 0x00080008) << 12;
}

__device__ inline float2 floats_from_halves(std::uint32_t halves) { return __half22float2(*reinterpret_cast<const __half2*>(&halves)); }

/// 2 ^ (code - 127). The smallest one is subnormal, and 255 is NaN.
__device__ inline float f32_from_ue8m0(std::uint32_t code) {
  return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

/// The nearest e4m3 values, ties to even, saturating.
__device__ inline std::uint32_t e4m3_codes(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, __NV_E4M3);
}

/// Quotients by a constant, correctly rounded where they are normal numbers. It is the compiler's division without its care for others.
template <int kDivisor>
__device__ inline float divided_by(float value) {
  constexpr float kInverse = 1.0f / kDivisor;
  const float first = value * kInverse;
  return fmaf(fmaf(-static_cast<float>(kDivisor), first, value), kInverse, first);
}

/// Quotients by one scale, rounded so that their e4m3, e5m2 and e2m1 values are those of correctly rounded quotients. One step of
/// refinement suffices for all f32 values and scales: all quotients next to midpoints of these values were tried. Tiny and
/// huge scales are multiplied by a lift, so that the excess is exact. It has the sign of the scale, which keeps the signs
/// of zeros. An infinite scale leaves no excess.
class Divisor {
 public:
  __device__ explicit Divisor(float scale) {
    const float size = fabsf(scale), lift = size < 0x1p-64f ? 0x1p100f : size > 0x1p64f ? 0x1p-100f : 1.0f;
    lift_ = copysignf(lift, scale);
    scale_ = isinf(size) ? 0.0f : size * lift;
    inverse_ = 1.0f / (size * lift);
  }

  __device__ float divide(float value) const {
    const float2 both = refined_and_first(value);
    // An infinity has no excess, and quotients this large saturate.
    return fabsf(both.y) < 65536.0f ? both.x : both.y;
  }

  /// The quotient, NaN where it is infinite, and one before the refinement, which has its sign.
  __device__ float2 refined_and_first(float value) const {
    const float lifted = value * lift_, first = lifted * inverse_;
    const float excess = fmaf(scale_, first, -lifted);
    return {fmaf(-excess, inverse_, first), first};
  }

 private:
  float lift_, scale_, inverse_;
};

}  // namespace fovea::gpu
