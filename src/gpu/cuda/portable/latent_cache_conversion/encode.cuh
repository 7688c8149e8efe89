// SPDX-License-Identifier: Apache-2.0
/// Quantisation of a lane's chunk.
#pragma once

#include <cfloat>

#include "fovea/cache_format.hpp"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/latent_cache_conversion/token.cuh"

namespace fovea::gpu::portable::conversion {

// ---- raw bits of a chunk ----------------------------------------------------------------------------------------------------

template <class T>
inline constexpr std::uint32_t kSign = sizeof(T) == 4 ? 0x80000000u : 0x8000u;

template <class T>
constexpr std::uint32_t infinity_bits() {
  return std::is_same_v<T, float> ? 0x7f800000u : std::is_same_v<T, __half> ? 0x7c00u : 0x7f80u;
}

template <class T>
__device__ inline std::uint32_t element_bits(const Chunk& chunk, int i) {
  if constexpr (sizeof(T) == 4) {
    return chunk.element[i];
  } else {
    return chunk.element[i / 2] >> i % 2 * 16 & 0xffff;
  }
}

template <class T>
__device__ inline std::uint32_t largest_bits(const Chunk& chunk) {
  std::uint32_t most = 0;
  if constexpr (sizeof(T) == 4) {
    for (const std::uint32_t bits : chunk.element) most = max(most, bits & 0x7fffffffu);
    return most;
  } else {
    for (const std::uint32_t bits : chunk.element) most = __vmaxu2(most, bits & 0x7fff7fffu);
    return max(most & 0xffff, most >> 16);
  }
}

/// The number with these magnitude bits.
template <class T>
__device__ inline float magnitude(std::uint32_t bits) {
  if constexpr (std::is_same_v<T, float>) return __uint_as_float(bits);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __uint_as_float(bits << 16);
  if constexpr (std::is_same_v<T, __half>) return floats_from_halves(bits).x;
}

template <class T, int kValues>
__device__ inline void to_values(const Chunk& chunk, float (&values)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; i += 2) {
    if constexpr (std::is_same_v<T, float>) {
      values[i] = __uint_as_float(chunk.element[i]);
      values[i + 1] = __uint_as_float(chunk.element[i + 1]);
    } else if constexpr (std::is_same_v<T, __half>) {
      const float2 both = floats_from_halves(chunk.element[i / 2]);
      values[i] = both.x;
      values[i + 1] = both.y;
    } else {
      values[i] = __uint_as_float(chunk.element[i / 2] << 16);
      values[i + 1] = __uint_as_float(chunk.element[i / 2] & 0xffff0000u);
    }
  }
}

/// The highest bytes, with the signs, of four values from value `i` on.
template <class T>
__device__ inline std::uint32_t top_bytes(const Chunk& chunk, int i) {
  const auto& words = chunk.element;
  if constexpr (sizeof(T) == 2) {
    return __byte_perm(words[i / 2], words[i / 2 + 1], 0x7531);
  } else {
    return __byte_perm(__byte_perm(words[i], words[i + 1], 0x0073), __byte_perm(words[i + 2], words[i + 3], 0x0073), 0x5410);
  }
}

/// Two values as bf16, the first in the low half.
template <class T>
__device__ inline std::uint32_t bf16_pair(const Chunk& chunk, int pair) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return chunk.element[pair];
  } else {
    std::uint32_t signs;
    float first, second;
    if constexpr (std::is_same_v<T, __half>) {
      signs = chunk.element[pair];
      const float2 both = floats_from_halves(signs);
      first = both.x, second = both.y;
    } else {
      signs = __byte_perm(chunk.element[2 * pair], chunk.element[2 * pair + 1], 0x7632);
      first = __uint_as_float(chunk.element[2 * pair]), second = __uint_as_float(chunk.element[2 * pair + 1]);
    }
    const __nv_bfloat162 both = __floats2bfloat162_rn(first, second);
    return *reinterpret_cast<const std::uint32_t*>(&both) | (signs & 0x80008000u);
  }
}

// ---- e4m3 codes -------------------------------------------------------------------------------------------------------------

__device__ inline float at_most_finite(float magnitude) { return fminf(magnitude, FLT_MAX); }

/// The smallest power of two that is not below x > 0, nor below 2^-127.
__device__ inline float power_at_least(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  return __uint_as_float(bits <= 0x00400000u ? 0x00400000u : (bits + 0x007fffffu) & 0x7f800000u);
}
__device__ inline std::uint32_t ue8m0_from_power(float power) { return __float_as_uint(power) >> 23; }
__device__ inline float inverse_of_power(float power) { return f32_from_ue8m0(254 - ue8m0_from_power(power)); }

/// The scale of a group. A NaN is kept in its quantised value, not in the scale.
template <ScaleType kType>
__device__ inline float choose_scale(float largest, bool exact) {
  const float wanted = isnan(largest) ? 1.0f : at_most_finite(largest) / 448.0f;
  const float floored = !exact ? fmaxf(wanted, 1e-4f) : wanted == 0 ? 1.0f : wanted;
  return exact && kType == ScaleType::f32 ? floored : power_at_least(floored);
}

// ---- e2m1 codes -------------------------------------------------------------------------------------------------------------

/// Quotients by an e4m3 scale, as exact as e2m1 needs. A scale has four significant bits, so a quotient that is not a tie of e2m1 is more
/// than half an ulp away from one. A product with twice the bits of the reciprocal therefore rounds to the same e2m1 value as the correctly
/// rounded quotient.
class FourBitDivisor {
 public:
  __device__ explicit FourBitDivisor(float scale) {
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(high_) : "f"(scale));  // 0 or normal, so subnormals need no care
    low_ = fmaf(-scale, high_, 1.0f) * high_;
  }
  __device__ float divide(float value) const { return fmaf(value, high_, value * low_); }

 private:
  float high_ = 0, low_ = 0;
};

/// The nearest e2m1 codes of the magnitudes, ties to even, saturating; the first in the low nibble. Codes are a half, one and two apart
/// from 0, 2 and 4 on. Adding a large number rounds to one of these steps, and the right step gives the smallest code. A NaN has larger
/// bits than any of these numbers.
template <int kValues>
__device__ inline std::uint32_t e2m1_codes(const float (&values)[kValues]) {
  constexpr float kRound = 0x1p23f;
  constexpr std::uint32_t kRoundBits = 0x4b000000u;
  std::uint32_t codes = 0;
#pragma unroll
  for (int i = kValues - 1; i >= 0; --i) {
    const float size = fabsf(values[i]);
    const float fine = fmaf(size, 2.0f, kRound), middle = size + (kRound + 2), coarse = fmaf(size, 0.5f, kRound + 4);
    const std::uint32_t least = min(min(__float_as_uint(fine), __float_as_uint(middle)), __float_as_uint(coarse));
    codes = codes * 16 + min(least, kRoundBits + 7);
  }
  return codes - 17 * kRoundBits;  // minus what the large numbers leave in 32 bits
}

/// Signs as e2m1 has them.
template <class T>
__device__ inline std::uint32_t sign_nibbles(const Chunk& chunk) {
  const auto apart = [&](int i) {
    const std::uint32_t signs = top_bytes<T>(chunk, i) & 0x80808080u;
    return (signs >> 4 | signs >> 8) & 0x00880088u;
  };
  return __byte_perm(apart(0), sizeof(T) == 2 ? apart(sizeof(T) == 2 ? 4 : 0) : 0, 0x6420);
}

}  // namespace fovea::gpu::portable::conversion
