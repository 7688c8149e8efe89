// SPDX-License-Identifier: Apache-2.0
/// One row of a KV cache format (fovea/kv_format.hpp), from its bytes and into them: the truth that vector code is tested against.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "fovea/kv_format.hpp"
#include "op/common/numeric.hpp"

namespace fovea::detail {

/// e5m2 (OCP): the upper byte of an f16 number. Rounds to nearest even, saturates at 57344, and NaN stays NaN.
constexpr std::uint8_t e5m2_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude >= 0x47600000U) return static_cast<std::uint8_t>(sign | 0x7bU);  // 57344 and above
  if (magnitude < 0x38800000U) {                                                 // below 2^-14: multiples of 2^-16
    const float scaled = std::bit_cast<float>(magnitude) * 65536.0f;             // exact; in [0, 4)
    const auto floor = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(floor);
    return static_cast<std::uint8_t>(sign | (floor + (rest > 0.5f || (rest == 0.5f && (floor & 1U) != 0) ? 1U : 0U)));
  }
  const std::uint32_t rebased = magnitude - (112U << 23);
  return static_cast<std::uint8_t>(sign | ((rebased + 0xfffffU + ((rebased >> 21) & 1U)) >> 21));
}

constexpr float f32_from_e5m2(std::uint8_t bits) { return f32_from_f16(static_cast<std::uint16_t>(bits << 8)); }

/// e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6. Ties go to the even code. The largest code stands for what is larger, and for NaN.
constexpr std::uint8_t e2m1_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const float size = std::bit_cast<float>(bits & 0x7fffffffU);
  const int code =
      size != size ? 7
                   : (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return static_cast<std::uint8_t>(code | static_cast<int>((bits >> 28) & 8U));
}

constexpr float f32_from_e2m1(unsigned code) {
  constexpr float kMagnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8U) != 0 ? -kMagnitudes[code & 7U] : kMagnitudes[code & 7U];
}

constexpr float f32_from_ue8m0(std::uint8_t code) {
  return std::bit_cast<float>(code == 255 ? 0x7fc00000U : code == 0 ? 0x00400000U : static_cast<std::uint32_t>(code) << 23);
}

/// The number of int4_token beside each row.
constexpr float int4_scale(std::uint32_t bits) { return std::bit_cast<float>(bits & ~15U); }
constexpr int int4_zero(std::uint32_t bits) { return static_cast<int>(bits & 15U); }
constexpr std::uint32_t int4_bits(float scale, int zero) {
  return (std::bit_cast<std::uint32_t>(scale) & ~15U) | static_cast<std::uint32_t>(zero);
}

/// The bytes of a row. Scales are those of the row alone, side by side.
struct KvRowBytes {
  void* codes = nullptr;
  void* scales = nullptr;
  DType scale_dtype = DType::f32;
};

/// row[i] is the value in f32, rounded once where code, scale and global have a product that f32 lacks.
void decode_kv_row(const KvRowFormat& format, const KvRowBytes& bytes, float global, std::span<float> row);

/// Scales: the row's (or group's) largest magnitude over the largest code, rounded as it is stored, and that number quantises. A scale is
/// finite always. NaN counts for no scale and becomes the code for NaN, or the largest code where there is none; what is too large
/// saturates.
///   int8_token, e4m3_token   max(amax / 127 or 448, 1e-6)
///   int4_token               max((max - min) / 15, 1e-6) of the row and 0, zero = round(-min / scale); the scale quantises before its
///                            lowest bits become the zero point
///   nvfp4                    amax / 6 / global; where it rounds to 0, codes are 0
///   mxfp4, mxfp8             the power of two at or above amax / 6 or 448; 1 where amax is 0
void encode_kv_row(const KvRowFormat& format, const KvRowBytes& bytes, float global, std::span<const float> row);

}  // namespace fovea::detail
