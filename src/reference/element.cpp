// SPDX-License-Identifier: Apache-2.0
#include "reference/element.hpp"

#include <cmath>
#include <limits>

namespace fovea::reference {
namespace {

/// What distinguishes the small floating-point formats. Everything else follows from the definition of a float.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr std::uint32_t sign() const { return 1U << (exponent_bits + mantissa_bits); }
  constexpr std::uint32_t top() const { return sign() - 1; }  // all exponent and mantissa bits: a NaN
};
constexpr Format kF16{5, 10, true}, kBf16{8, 7, true}, kE4m3{4, 3, false};

double decode(const Format& format, std::uint32_t code) {
  const std::uint32_t magnitude = code & format.top();
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const auto mantissa = static_cast<double>(magnitude & ((1U << format.mantissa_bits) - 1));
  const bool last_exponent = exponent == (1 << format.exponent_bits) - 1;
  double value = 0;
  if (format.has_infinity && last_exponent) {
    value = mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity();
  } else if (!format.has_infinity && magnitude == format.top()) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - format.bias() - format.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + std::ldexp(1.0, format.mantissa_bits), exponent - format.bias() - format.mantissa_bits);
  }
  return (code & format.sign()) != 0 ? -value : value;
}

/// Rounds to the grid of the value's binade (never finer than the subnormal grid), to nearest even, once.
std::uint32_t encode(const Format& format, double value) {
  const std::uint32_t sign = std::signbit(value) ? format.sign() : 0;
  const std::uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.mantissa_bits;
  const std::uint32_t largest = format.has_infinity ? infinity - 1 : format.top() - 1;
  if (std::isnan(value)) return sign | format.top();
  const double magnitude = std::fabs(value);
  const int smallest = 1 - format.bias();
  const int exponent = magnitude == 0 ? smallest : std::max(std::ilogb(std::min(magnitude, 0x1p200)), smallest);
  const double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  if (std::ldexp(steps, exponent - format.mantissa_bits) > decode(format, largest))
    return sign | (format.has_infinity ? infinity : largest);
  const auto base = static_cast<std::uint32_t>(exponent - smallest) << format.mantissa_bits;
  return sign | (base + static_cast<std::uint32_t>(steps));  // a carry out of the mantissa rightly increments the exponent
}

}  // namespace

double load(DType dtype, const void* data, std::int64_t index) {
  switch (dtype) {
    case DType::f32: return static_cast<const float*>(data)[index];
    case DType::f16: return decode(kF16, static_cast<const std::uint16_t*>(data)[index]);
    case DType::bf16: return decode(kBf16, static_cast<const std::uint16_t*>(data)[index]);
    case DType::e4m3: return decode(kE4m3, static_cast<const std::uint8_t*>(data)[index]);
    case DType::i8: return static_cast<const std::int8_t*>(data)[index];
    case DType::i32: return static_cast<const std::int32_t*>(data)[index];
    case DType::f64: return static_cast<const double*>(data)[index];
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(data)[index]);
  }
  return 0;
}

void store(DType dtype, void* data, std::int64_t index, double value) {
  switch (dtype) {
    case DType::f32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::f64: static_cast<double*>(data)[index] = value; break;
    case DType::f16: static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(encode(kF16, value)); break;
    case DType::bf16: static_cast<std::uint16_t*>(data)[index] = static_cast<std::uint16_t>(encode(kBf16, value)); break;
    case DType::e4m3: static_cast<std::uint8_t*>(data)[index] = static_cast<std::uint8_t>(encode(kE4m3, value)); break;
    case DType::i8: static_cast<std::int8_t*>(data)[index] = static_cast<std::int8_t>(value); break;
    case DType::i32:
    case DType::i64: break;  // no operation writes indices
  }
}

}  // namespace fovea::reference
