// SPDX-License-Identifier: Apache-2.0
#include "numeric.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace fovea::check {
namespace {

/// A binary floating-point format: stored mantissa bits, and the exponent of its smallest normal number.
struct Format {
  int mantissa;
  int min_exponent;
};

constexpr Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {10, -14};
    case DType::bf16: return {7, -126};
    case DType::e4m3: return {3, -6};
    default: return {23, -126};
  }
}

/// The code of a non-negative finite value, rounded to nearest even. Codes number the format's values upwards from 0, so rounding up
/// carries by itself.
std::uint32_t encode_magnitude(Format format, float magnitude) {
  const auto quanta_per_unit = std::bit_cast<float>(static_cast<std::uint32_t>(127 + format.mantissa - format.min_exponent) << 23);
  if (magnitude * quanta_per_unit < static_cast<float>(1u << format.mantissa))  // subnormal
    return static_cast<std::uint32_t>(std::nearbyint(magnitude * quanta_per_unit));
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const auto dropped = static_cast<std::uint32_t>(23 - format.mantissa);
  const std::uint32_t nearest_even = (1u << (dropped - 1)) - 1 + ((bits >> dropped) & 1);
  return ((bits + nearest_even) >> dropped) - (static_cast<std::uint32_t>(126 + format.min_exponent) << format.mantissa);
}

float decode_magnitude(Format format, std::uint32_t code) {
  const auto biased = static_cast<int>(code >> format.mantissa);
  const auto fraction = static_cast<float>(code & ((1u << format.mantissa) - 1));
  const float implicit = biased == 0 ? 0.0f : static_cast<float>(1u << format.mantissa);
  return std::ldexp(implicit + fraction, std::max(biased, 1) - 1 + format.min_exponent - format.mantissa);
}

std::uint16_t to_f16(float value) {
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7e00;
  if (std::isinf(value)) return sign | 0x7c00;
  return static_cast<std::uint16_t>(sign | std::min(encode_magnitude(format_of(DType::f16), std::fabs(value)), 0x7c00u));
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

std::uint8_t to_e4m3(float value) {
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  return static_cast<std::uint8_t>(sign | std::min(encode_magnitude(format_of(DType::e4m3), std::min(std::fabs(value), 448.0f)), 0x7eu));
}

std::vector<float> f16_values() {
  std::vector<float> values(65536);
  for (std::uint32_t code = 0; code < 65536; ++code) {
    const std::uint32_t magnitude = code & 0x7fff;
    float value = decode_magnitude(format_of(DType::f16), magnitude);
    if (magnitude == 0x7c00) value = std::numeric_limits<float>::infinity();
    if (magnitude > 0x7c00) value = std::numeric_limits<float>::quiet_NaN();
    values[code] = code & 0x8000 ? -value : value;
  }
  return values;
}

std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (std::uint32_t code = 0; code < 256; ++code) {
    const std::uint32_t magnitude = code & 0x7f;
    float value = decode_magnitude(format_of(DType::e4m3), magnitude);
    if (magnitude == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
    values[code] = code & 0x80 ? -value : value;
  }
  return values;
}

}  // namespace

float load(DType dtype, const void* data, std::int64_t index) {
  static const std::vector<float> f16 = f16_values();
  static const std::array<float, 256> e4m3 = e4m3_values();
  const char* at = static_cast<const char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  std::uint32_t bits = 0;
  std::memcpy(&bits, at, std::min<std::size_t>(size_of(dtype), 4));
  switch (dtype) {
    case DType::f16: return f16[bits];
    case DType::bf16: return std::bit_cast<float>(bits << 16);
    case DType::e4m3: return e4m3[bits];
    case DType::i8: return static_cast<float>(static_cast<std::int8_t>(bits));
    default: return std::bit_cast<float>(bits);
  }
}

void store(DType dtype, void* data, std::int64_t index, float value) {
  std::uint32_t bits = 0;
  switch (dtype) {
    case DType::f16: bits = to_f16(value); break;
    case DType::bf16: bits = to_bf16(value); break;
    case DType::e4m3: bits = to_e4m3(value); break;
    case DType::i8: bits = static_cast<std::uint8_t>(static_cast<std::int8_t>(value)); break;
    default: bits = std::bit_cast<std::uint32_t>(value); break;
  }
  char* at = static_cast<char*>(data) + index * static_cast<std::int64_t>(size_of(dtype));
  std::memcpy(at, &bits, std::min<std::size_t>(size_of(dtype), 4));
}

float rounded(DType dtype, float value) {
  std::uint32_t storage = 0;
  store(dtype, &storage, 0, value);
  return load(dtype, &storage, 0);
}

double ulp(DType dtype, double magnitude) {
  const Format format = format_of(dtype);
  const int exponent = magnitude > 0 ? std::max(std::ilogb(magnitude), format.min_exponent) : format.min_exponent;
  return std::ldexp(1.0, exponent - format.mantissa);
}

}  // namespace fovea::check
