// SPDX-License-Identifier: Apache-2.0
/// Words of codes from floats, without conversions of single values to integers.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "fovea/kv_format.hpp"

namespace fovea::gpu::portable::append {

/// The smallest number. Products by it are multiples of it, rounded to nearest, ties to even: their bits are integers, with a sign bit
/// below zero. NaN has the bits of the largest integer.
inline constexpr float kUnit = 0x1p-149f;

/// A number to code. `signed_value` has its sign, also where `value` is a NaN in place of an infinity.
struct Quotient {
  __device__ Quotient(float x) : value(x), signed_value(x) {}  // NOLINT: a number is a quotient
  __device__ Quotient(float x, float sign) : value(x), signed_value(sign) {}
  float value, signed_value;
};

/// Two codes, saturated, below those of `others`.
template <KvCode kCode>
__device__ __forceinline__ std::uint32_t pack_two(std::uint32_t low, std::uint32_t high, std::uint32_t others) {
  std::uint32_t packed;
  if constexpr (kCode == KvCode::i8) {
    asm("cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;" : "=r"(packed) : "r"(high), "r"(low), "r"(others));
  } else if constexpr (kCode == KvCode::u4) {
    asm("cvt.pack.sat.u4.s32.b32 %0, %1, %2, %3;" : "=r"(packed) : "r"(high), "r"(low), "r"(others));
  } else {
    asm("cvt.pack.sat.s4.s32.b32 %0, %1, %2, %3;" : "=r"(packed) : "r"(high), "r"(low), "r"(others));
  }
  return packed;
}

/// The integer of a code before it is saturated. An i8 code gets 128 more: none is negative. The e2m1 code is of twice the value. Codes
/// are a half, one and two apart from 0, 2 and 4 on. Three numbers are rounded to these steps, and the right one is the least.
template <KvCode kCode>
__device__ __forceinline__ std::uint32_t integer_of(float value) {
  if constexpr (kCode == KvCode::i8) return __float_as_uint(fmaf(value, kUnit, 128 * kUnit));
  if constexpr (kCode == KvCode::u4) return __float_as_uint(value * kUnit);
  const float size = fabsf(value);
  const float fine = size * (4 * kUnit), middle = fmaf(size, 2 * kUnit, 2 * kUnit), coarse = fmaf(size, kUnit, 4 * kUnit);
  return min(min(__float_as_uint(fine), __float_as_uint(middle)), __float_as_uint(coarse));
}

/// Values of a word.
template <KvCode kCode>
inline constexpr int kWordCodes = kCode == KvCode::u4 || kCode == KvCode::e2m1 ? 8 : 4;

/// The nearest codes, ties to even, the first in the lowest bits. NaN becomes the largest code, that of e4m3 and e5m2 their NaN.
template <KvCode kCode, int kCount>
__device__ __forceinline__ std::uint32_t word_of_codes(const Quotient (&of)[kCount]) {
  static_assert(kCount == kWordCodes<kCode>);
  if constexpr (kCode == KvCode::e4m3 || kCode == KvCode::e5m2) {
    constexpr auto kKind = kCode == KvCode::e4m3 ? __NV_E4M3 : __NV_E5M2;
    const auto two = [&](int i) -> std::uint32_t {
      return __nv_cvt_float2_to_fp8x2({of[i].value, of[i + 1].value}, __NV_SATFINITE, kKind);
    };
    return two(0) | two(2) << 16;
  } else {
    std::uint32_t word = 0, signs = 0;
#pragma unroll
    for (int i = kCount - 2; i >= 0; i -= 2) {
      word = pack_two<kCode>(integer_of<kCode>(of[i].value), integer_of<kCode>(of[i + 1].value), word);
      if constexpr (kCode == KvCode::e2m1) {
        signs = __funnelshift_l(__float_as_uint(of[i + 1].signed_value), signs, 4);
        signs = __funnelshift_l(__float_as_uint(of[i].signed_value), signs, 4);
      }
    }
    return kCode == KvCode::i8 ? word ^ 0x80808080u : word | (signs & 0x88888888u);
  }
}

}  // namespace fovea::gpu::portable::append
