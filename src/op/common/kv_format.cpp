// SPDX-License-Identifier: Apache-2.0
#include "op/common/kv_format.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

namespace fovea::detail {
namespace {

constexpr float kMost = std::numeric_limits<float>::max() / 2;  // no code of a scale from it is infinite
constexpr float kLeastScale = 1e-6f;                            // its inverse is finite

template <class T>
T read(const void* from, std::int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(from) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}
template <class T>
void write(void* to, std::int64_t index, T value) {
  std::memcpy(static_cast<std::byte*>(to) + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

float read_scale(const KvRowFormat& format, const KvRowBytes& bytes, std::int64_t group) {
  switch (format.scale) {
    case KvScale::none: return 1.0f;
    case KvScale::token:
      return bytes.scale_dtype == DType::f16 ? f32_from_f16(read<std::uint16_t>(bytes.scales, 0)) : read<float>(bytes.scales, 0);
    case KvScale::token_zero: return int4_scale(read<std::uint32_t>(bytes.scales, 0));
    case KvScale::block_e4m3: return f32_from_e4m3(read<std::uint8_t>(bytes.scales, group));
    case KvScale::block_ue8m0: return f32_from_ue8m0(read<std::uint8_t>(bytes.scales, group));
  }
  return 0;
}

/// A code without its scale, nor its zero point.
float read_code(KvCode code, const void* codes, std::int64_t index) {
  const auto nibble = [&] { return static_cast<unsigned>(read<std::uint8_t>(codes, index / 2) >> (index % 2 * 4)) & 15U; };
  switch (code) {
    case KvCode::i8: return static_cast<float>(read<std::int8_t>(codes, index));
    case KvCode::e4m3: return f32_from_e4m3(read<std::uint8_t>(codes, index));
    case KvCode::e5m2: return f32_from_e5m2(read<std::uint8_t>(codes, index));
    case KvCode::u4: return static_cast<float>(nibble());
    case KvCode::e2m1: return f32_from_e2m1(nibble());
  }
  return 0;
}

/// Rounded to nearest even between the bounds. NaN becomes the upper one.
int to_integer(float value, float least, float most) {
  return static_cast<int>(std::nearbyint(std::isnan(value) ? most : std::clamp(value, least, most)));
}

void write_code(KvCode code, void* codes, std::int64_t index, float value) {
  const auto nibble = [&](unsigned bits) {
    const int shift = index % 2 == 0 ? 0 : 4;
    const unsigned other = read<std::uint8_t>(codes, index / 2) & (0xf0U >> shift);
    write(codes, index / 2, static_cast<std::uint8_t>(other | (bits << shift)));
  };
  switch (code) {
    case KvCode::i8: return write(codes, index, static_cast<std::int8_t>(to_integer(value, -128, 127)));
    case KvCode::e4m3: return write(codes, index, e4m3_from_f32(value));
    case KvCode::e5m2: return write(codes, index, e5m2_from_f32(value));
    case KvCode::u4: return nibble(static_cast<unsigned>(to_integer(value, 0, 15)));
    case KvCode::e2m1: return nibble(e2m1_from_f32(value));
  }
}

float largest_code(KvCode code) { return code == KvCode::i8 ? 127.0f : code == KvCode::e4m3 ? 448.0f : 6.0f; }

/// The largest magnitude, at most half the largest float. NaN counts for nothing.
float largest_magnitude(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::fabs(value) > largest ? std::fabs(value) : largest;
  return std::min(largest, kMost);
}

/// The exponent of the smallest power of two at or above a positive number.
int ceil_log2(float x) {
  int exponent = 0;
  return std::frexp(x, &exponent) == 0.5f ? exponent - 1 : exponent;
}

/// Stores the scale of a row and returns it as it is stored.
float write_token_scale(const KvRowFormat& format, const KvRowBytes& bytes, std::span<const float> row) {
  const float scale = std::max(largest_magnitude(row) / largest_code(format.code), kLeastScale);
  if (bytes.scale_dtype == DType::f16) {
    write(bytes.scales, 0, f16_from_f32(std::min(scale, 65504.0f)));
  } else {
    write(bytes.scales, 0, scale);
  }
  return read_scale(format, bytes, 0);
}

void encode_token(const KvRowFormat& format, const KvRowBytes& bytes, std::span<const float> row) {
  const float inverse = 1.0f / write_token_scale(format, bytes, row);
  for (std::size_t i = 0; i < row.size(); ++i) write_code(format.code, bytes.codes, static_cast<std::int64_t>(i), row[i] * inverse);
}

void encode_int4(const KvRowFormat& format, const KvRowBytes& bytes, std::span<const float> row) {
  float least = 0, most = 0;
  for (const float value : row) {
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  const float scale = std::max((std::min(most, kMost) - std::max(least, -kMost)) / 15.0f, kLeastScale);
  const int zero = to_integer(-std::max(least, -kMost) / scale, 0, 15);
  write(bytes.scales, 0, int4_bits(scale, zero));
  const float inverse = 1.0f / scale;
  for (std::size_t i = 0; i < row.size(); ++i) {
    write_code(format.code, bytes.codes, static_cast<std::int64_t>(i), std::fma(row[i], inverse, static_cast<float>(zero)));
  }
}

void encode_groups(const KvRowFormat& format, const KvRowBytes& bytes, float global, std::span<const float> row) {
  const auto group = static_cast<std::size_t>(format.group);
  for (std::size_t first = 0; first < row.size(); first += group) {
    const std::span values = row.subspan(first, group);
    const float wanted = largest_magnitude(values) / largest_code(format.code);
    const auto at = static_cast<std::int64_t>(first / group);
    if (format.scale == KvScale::block_e4m3) {
      write(bytes.scales, at, e4m3_from_f32(std::fabs(wanted / global)));
    } else {
      write(bytes.scales, at, static_cast<std::uint8_t>(wanted == 0 ? 127 : std::clamp(ceil_log2(wanted), -127, 127) + 127));
    }
    const float scale = read_scale(format, bytes, at) * global;
    for (std::size_t i = 0; i < group; ++i) {
      write_code(format.code, bytes.codes, static_cast<std::int64_t>(first + i), scale == 0 ? 0.0f : values[i] / scale);
    }
  }
}

}  // namespace

void decode_kv_row(const KvRowFormat& format, const KvRowBytes& bytes, float global, std::span<float> row) {
  const int zero = format.scale == KvScale::token_zero ? int4_zero(read<std::uint32_t>(bytes.scales, 0)) : 0;
  const auto group = static_cast<std::int64_t>(format.group == 0 ? row.size() : static_cast<std::size_t>(format.group));
  for (std::size_t i = 0; i < row.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const float code = read_code(format.code, bytes.codes, at) - static_cast<float>(zero);
    row[i] = code * read_scale(format, bytes, at / group) * global;
  }
}

void encode_kv_row(const KvRowFormat& format, const KvRowBytes& bytes, float global, std::span<const float> row) {
  switch (format.scale) {
    case KvScale::token: return encode_token(format, bytes, row);
    case KvScale::token_zero: return encode_int4(format, bytes, row);
    case KvScale::block_e4m3:
    case KvScale::block_ue8m0: return encode_groups(format, bytes, global, row);
    case KvScale::none: break;
  }
  for (std::size_t i = 0; i < row.size(); ++i) write_code(format.code, bytes.codes, static_cast<std::int64_t>(i), row[i] / global);
}

}  // namespace fovea::detail
