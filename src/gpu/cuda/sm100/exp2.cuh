// SPDX-License-Identifier: Apache-2.0
/// Powers of two: by the unit for them, and by a polynomial on the units for multiply-adds, which works
/// beside it. Arithmetic of two floats at once, which an SM does as fast as that of one.
///
/// The polynomial's steps, for x from -126 to 127:
///   n = x rounded to an integer, as the low bits of x + 1.5 * 2^23 + 127
///   f = x - n, from -1/2 to 1/2
///   2^f: the polynomial of degree 4 that is 1 at 0 and whose largest relative error is least: 2^-18.4
///   2^n: n + 127 shifted into the exponent
/// Below, the result is 0, also of -INFINITY. NaN gives NaN: it reaches 2^f and the product.
#pragma once

#include <vector_types.h>

#include <cstdint>

#ifndef __CUDACC__
#include <bit>
#include <cmath>
#endif

namespace fovea::gpu::sm100 {

#ifdef __CUDACC__

// A float2 as one register of 64 bits, and back.
__device__ __forceinline__ std::uint64_t pair_of(float2 x) {
  return static_cast<std::uint64_t>(__float_as_uint(x.y)) << 32 | __float_as_uint(x.x);
}
__device__ __forceinline__ float2 float2_of(std::uint64_t pair) {
  return {__uint_as_float(static_cast<std::uint32_t>(pair)), __uint_as_float(static_cast<std::uint32_t>(pair >> 32))};
}

__device__ __forceinline__ float2 fma2(float2 a, float2 b, float2 c) {
  std::uint64_t d;
  asm("fma.rn.f32x2 %0, %1, %2, %3;" : "=l"(d) : "l"(pair_of(a)), "l"(pair_of(b)), "l"(pair_of(c)));
  return float2_of(d);
}
__device__ __forceinline__ float2 add2(float2 a, float2 b) {
  std::uint64_t d;
  asm("add.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(pair_of(a)), "l"(pair_of(b)));
  return float2_of(d);
}
__device__ __forceinline__ float2 mul2(float2 a, float2 b) {
  std::uint64_t d;
  asm("mul.rn.f32x2 %0, %1, %2;" : "=l"(d) : "l"(pair_of(a)), "l"(pair_of(b)));
  return float2_of(d);
}

/// By the unit for powers of two. Results below 2^-126 are 0.
__device__ __forceinline__ float exp2_by_unit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float at_least(float x, float least) {  // NaN if x is
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(least));
  return x;
}
__device__ __forceinline__ float low_bits_as_exponent(float x) { return __uint_as_float(__float_as_uint(x) << 23); }

#else

inline float2 fma2(float2 a, float2 b, float2 c) { return {std::fma(a.x, b.x, c.x), std::fma(a.y, b.y, c.y)}; }
inline float2 add2(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }
inline float2 mul2(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }

inline float exp2_by_unit(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0 : y;
}

inline float at_least(float x, float least) { return x < least ? least : x; }
inline float low_bits_as_exponent(float x) { return std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) << 23); }

#endif

__device__ __forceinline__ float2 both(float x) { return {x, x}; }

/// By the polynomial.
__device__ __forceinline__ float2 exp2_by_polynomial(float2 x) {
  constexpr float kRound = 0x1.8p23f + 127;
  x = {at_least(x.x, -127), at_least(x.y, -127)};
  const float2 rounded = add2(x, both(kRound));
  const float2 n = add2(rounded, both(-kRound));
  const float2 f = fma2(n, both(-1), x);
  float2 power = fma2(both(0.009582853f), f, both(0.055906426f));
  power = fma2(power, f, both(0.24024099f));
  power = fma2(power, f, both(0.69312418f));
  power = fma2(power, f, both(1));
  return mul2(power, {low_bits_as_exponent(rounded.x), low_bits_as_exponent(rounded.y)});
}

}  // namespace fovea::gpu::sm100
