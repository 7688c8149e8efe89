// SPDX-License-Identifier: Apache-2.0
/// Bit-exact conversions of the storage types, in plain integer arithmetic: the truth that vector code is tested against.
#pragma once

#include <bit>
#include <cstdint>

namespace fovea::detail {

/// bfloat16, round to nearest even. A NaN stays a (quiet) NaN.
constexpr std::uint16_t bf16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

constexpr float f32_from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

/// IEEE half, round to nearest even, with subnormals; overflow gives infinity.
constexpr std::uint16_t f16_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint16_t>(sign | 0x7e00U);
  if (magnitude >= 0x477ff000U) return static_cast<std::uint16_t>(sign | 0x7c00U);  // rounds past 65504
  if (magnitude < 0x38800000U) {                                                    // below 2^-14: subnormal or zero
    const int shift = 126 - static_cast<int>(magnitude >> 23);                      // bits dropped below 2^-24
    if (shift > 24) return sign;
    const std::uint32_t mantissa = (magnitude & 0x7fffffU) | 0x800000U;
    const std::uint32_t half = 1U << (shift - 1);
    const std::uint32_t kept = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1U << shift) - 1U);
    return static_cast<std::uint16_t>(sign | (kept + ((rest > half || (rest == half && (kept & 1U) != 0)) ? 1U : 0U)));
  }
  const std::uint32_t rebased = magnitude - 0x38000000U;
  return static_cast<std::uint16_t>(sign | ((rebased + 0xfffU + ((rebased >> 13) & 1U)) >> 13));
}

constexpr float f32_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = bits & 0x3ffU;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/// e4m3 (OCP "fn": no infinity, NaN = 0x7f, largest 448), round to nearest even, saturating; NaN stays NaN.
constexpr std::uint8_t e4m3_from_f32(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>((bits >> 24) & 0x80U);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<std::uint8_t>(sign | 0x7fU);
  if (magnitude >= 0x43e00000U) return static_cast<std::uint8_t>(sign | 0x7eU);  // 448 and above
  if (magnitude < 0x3c800000U) {                                                 // below 2^-6: multiples of 2^-9
    const float scaled = std::bit_cast<float>(magnitude) * 512.0f;               // exact; in [0, 8)
    const auto floor = static_cast<std::uint32_t>(scaled);
    const float rest = scaled - static_cast<float>(floor);
    const bool up = rest > 0.5f || (rest == 0.5f && (floor & 1U) != 0);
    return static_cast<std::uint8_t>(sign | (floor + (up ? 1U : 0U)));
  }
  const std::uint32_t rebased = magnitude - (120U << 23);
  return static_cast<std::uint8_t>(sign | ((rebased + 0x7ffffU + ((rebased >> 20) & 1U)) >> 20));
}

constexpr float f32_from_e4m3(std::uint8_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x80U) << 24;
  const std::uint32_t magnitude = bits & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  const float value = std::bit_cast<float>(magnitude << 20) * 0x1p120f;  // the factor also normalises subnormals
  return sign != 0 ? -value : value;
}

}  // namespace fovea::detail
