// SPDX-License-Identifier: Apache-2.0
#include "reference/element.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace fovea::reference {
namespace {

/// The parameters of the small floating-point formats. Everything else follows from the definition of a float.
struct Format {
  int exponent_bits, mantissa_bits;
  bool has_infinity;
  constexpr int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  constexpr std::uint32_t sign() const { return 1U << (exponent_bits + mantissa_bits); }
  constexpr std::uint32_t top() const { return sign() - 1; }  // all exponent and mantissa bits: a NaN
};
constexpr Format kF16{5, 10, true}, kBf16{8, 7, true}, kE4m3{4, 3, false}, kE5m2{5, 2, true};

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

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kE2m1[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

double decode_scale(ScaleType type, const std::uint8_t* scales, std::int64_t group) {
  if (type == ScaleType::f32) {
    float value = 0;
    std::memcpy(&value, scales + group * 4, 4);
    return value;
  }
  if (type == ScaleType::e4m3) return load(DType::e4m3, scales, group);
  return scales[group] == 255 ? kNaN : std::ldexp(1.0, scales[group] - 127);
}

double decode_code(CodeType type, const std::uint8_t* codes, std::int64_t index) {
  if (type == CodeType::e4m3) return load(DType::e4m3, codes, index);
  const int nibble = (codes[index / 2] >> (index % 2 * 4)) & 15;  // even index in the low nibble
  return (nibble & 8) != 0 ? -kE2m1[nibble & 7] : kE2m1[nibble & 7];
}

/// The nearest e2m1 value, ties to the even mantissa, saturating at 6. e2m1 has no NaN: the scale of a group carries it.
int encode_e2m1(double value) {
  const double magnitude = std::min(std::fabs(value), 6.0);
  int best = 0;
  for (int code = 1; code < 8; ++code) {
    const double now = std::fabs(magnitude - kE2m1[code]), before = std::fabs(magnitude - kE2m1[best]);
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 8 : 0);
}

/// The smallest k with 2^k >= x, for x > 0.
int ceil_log2(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5f ? exponent - 1 : exponent;
}

/// The largest magnitude of a group, at most the largest finite float. NaN if the group holds one.
float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, std::fabs(value));
  }
  return std::min(largest, std::numeric_limits<float>::max());
}

/// Chooses the scale of a group, stores it, and returns the value that a reader sees.
float encode_scale(const PackedFormat& format, ScaleRule rule, float amax, std::uint8_t* scales, std::int64_t group) {
  if (format.scale_type == ScaleType::e4m3) {
    store(DType::e4m3, scales, group, static_cast<double>(amax / 6.0f));
    return static_cast<float>(load(DType::e4m3, scales, group));
  }
  const bool is_nan = std::isnan(amax);
  const float wanted = is_nan ? 1.0f : amax / 448.0f;
  const bool power = rule == ScaleRule::power_of_two || format.scale_type == ScaleType::ue8m0;
  const float floored = rule == ScaleRule::power_of_two ? std::max(wanted, 1e-4f) : (wanted == 0 ? 1.0f : wanted);
  const int exponent = std::clamp(ceil_log2(floored), -127, 127);
  if (format.scale_type == ScaleType::ue8m0) {
    scales[group] = static_cast<std::uint8_t>(exponent + 127);
    return std::ldexp(1.0f, exponent);
  }
  const float scale = power ? std::ldexp(1.0f, exponent) : floored;
  std::memcpy(scales + group * 4, &scale, 4);
  return scale;
}

void encode_group(const PackedFormat& format, std::span<const float> values, float scale, std::uint8_t* codes, std::int64_t first) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float quotient = scale == 0 ? 0.0f : values[i] / scale;
    const std::int64_t index = first + static_cast<std::int64_t>(i);
    if (format.code_type == CodeType::e4m3) {
      store(DType::e4m3, codes, index, static_cast<double>(quotient));
      continue;
    }
    const int shift = index % 2 == 0 ? 0 : 4;
    std::uint8_t& byte = codes[index / 2];
    byte = static_cast<std::uint8_t>((byte & (0xf0 >> shift)) | (encode_e2m1(static_cast<double>(quotient)) << shift));
  }
}

}  // namespace

void decode_row(const PackedFormat& format, const void* block, std::int64_t slot, std::int64_t page, double* row) {
  const auto* bytes = static_cast<const std::uint8_t*>(block);
  const std::uint8_t* codes = bytes + format.codes_at(slot);
  const std::uint8_t* scales = bytes + format.scales_at(slot, page);
  for (int i = 0; i < format.codes; ++i)
    row[i] = decode_code(format.code_type, codes, i) * decode_scale(format.scale_type, scales, i / format.group);
  for (int i = 0; i < format.rope; ++i) {
    std::uint16_t bits = 0;  // a row of 656 bytes need not be aligned
    std::memcpy(&bits, bytes + format.rope_at(slot) + 2 * i, 2);
    row[format.codes + i] = load(DType::bf16, &bits, 0);
  }
}

void encode_row(const PackedFormat& format, ScaleRule rule, std::span<const float> row, void* block, std::int64_t slot, std::int64_t page) {
  auto* bytes = static_cast<std::uint8_t*>(block);
  std::uint8_t* scales = bytes + format.scales_at(slot, page);
  std::memset(scales, 0, static_cast<std::size_t>(format.scale_bytes));
  for (int group = 0; group < format.groups(); ++group) {
    const std::span values = row.subspan(static_cast<std::size_t>(group * format.group), static_cast<std::size_t>(format.group));
    const float scale = encode_scale(format, rule, largest_magnitude(values), scales, group);
    encode_group(format, values, scale, bytes + format.codes_at(slot), group * format.group);
  }
  for (int i = 0; i < format.rope; ++i) {
    std::uint16_t bits = 0;
    store(DType::bf16, &bits, 0, row[static_cast<std::size_t>(format.codes + i)]);
    std::memcpy(bytes + format.rope_at(slot) + 2 * i, &bits, 2);
  }
}

namespace {

double kv_code(const KvRow& bytes, std::int64_t index) {
  const auto* codes = static_cast<const std::uint8_t*>(bytes.codes);
  const int nibble = codes[bytes.format.code_bits() == 4 ? index / 2 : index] >> (index % 2 * 4) & 15;
  switch (bytes.format.code) {
    case KvCode::i8: return static_cast<const std::int8_t*>(bytes.codes)[index];
    case KvCode::e4m3: return load(DType::e4m3, codes, index);
    case KvCode::e5m2: return decode(kE5m2, codes[index]);
    case KvCode::u4: return nibble;
    case KvCode::e2m1: return decode_code(CodeType::e2m1, codes, index);
  }
  return kNaN;
}

double kv_scale(const KvRow& bytes, std::int64_t index) {
  const auto* scales = static_cast<const std::uint8_t*>(bytes.scales);
  std::uint32_t bits = 0;
  switch (bytes.format.scale) {
    case KvScale::none: return 1;
    case KvScale::token: return load(bytes.scale_dtype, scales, 0);
    case KvScale::token_zero: std::memcpy(&bits, scales, sizeof bits); return static_cast<double>(std::bit_cast<float>(bits / 16 * 16));
    case KvScale::block_e4m3: return decode_scale(ScaleType::e4m3, scales, index / bytes.format.group);
    case KvScale::block_ue8m0: return decode_scale(ScaleType::ue8m0, scales, index / bytes.format.group);
  }
  return kNaN;
}

}  // namespace

void decode_kv_row(const KvRow& bytes, std::span<double> row) {
  std::uint32_t bits = 0;
  if (bytes.format.scale == KvScale::token_zero) std::memcpy(&bits, bytes.scales, sizeof bits);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    row[i] = (kv_code(bytes, index) - bits % 16) * kv_scale(bytes, index);
  }
}

}  // namespace fovea::reference
