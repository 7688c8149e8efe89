// SPDX-License-Identifier: Apache-2.0
/// The decoding and encoding kernels of every instruction set, over every code and every scale.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "cpu/implementations.hpp"
#include "fovea/cache_format.hpp"
#include "op/common/numeric.hpp"

namespace fovea::cpu {
namespace {

struct Set {
  std::string_view name;
  const Kernels& kernels;
};

std::vector<Set> available_sets() {
  std::vector<Set> sets;
  const auto add = [&](auto isa) {
    if (isa.kUnavailable().empty()) sets.push_back({isa.kName, isa.kernels()});
  };
  add(Scalar{});
#if defined(FOVEA_X86)
  add(Avx2{});
  add(Avx512{});
#elif defined(FOVEA_NEON)
  add(Neon{});
#endif
  return sets;
}

double value_of_e4m3(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 127) == 127) return std::nan("");
  const double size = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code < 128 ? size : -size;
}

double value_of_e2m1(int code) {
  constexpr double kSizes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  return code < 8 ? kSizes[code] : -kSizes[code - 8];
}

double value_of_ue8m0(int code) { return code == 255 ? std::nan("") : std::ldexp(1.0, code - 127); }

/// One token whose codes all are `code`, and whose scales all have the byte `scale` (or are the number 2^(scale - 140) * 1.3 in f32).
struct TokenBytes {
  TokenBytes(const PackedFormat& format, int code, int scale) : codes(512), scales(32), rope(129) {
    const int byte = format.code_type == CodeType::e2m1 ? code * 17 : code;
    std::fill(codes.begin(), codes.end(), static_cast<std::uint8_t>(byte));
    std::fill(scales.begin(), scales.end(), static_cast<std::uint8_t>(scale));
    if (format.scale_type == ScaleType::f32) {
      f32_scale = std::ldexp(1.3f, scale - 140);
      for (std::size_t i = 0; i < 4; ++i) std::memcpy(&scales[4 * i], &f32_scale, 4);
    }
    for (std::size_t i = 0; i < 64; ++i) {  // bf16 at an odd address
      const std::uint16_t bits = static_cast<std::uint16_t>(scale * 64 + static_cast<int>(i) * 7);
      std::memcpy(&rope[1 + 2 * i], &bits, 2);
    }
  }
  double scale_value(const PackedFormat& format, int scale) const {
    if (format.scale_type == ScaleType::f32) return f32_scale;
    return format.scale_type == ScaleType::ue8m0 ? value_of_ue8m0(scale) : value_of_e4m3(scale);
  }
  PackedBytes bytes() const { return {codes.data(), scales.data(), rope.data() + 1}; }

  std::vector<std::uint8_t> codes, scales, rope;
  float f32_scale = 0;
};

bool same(float got, float want) {
  return std::isnan(want) ? std::isnan(got) : std::bit_cast<std::uint32_t>(got) == std::bit_cast<std::uint32_t>(want);
}

TEST(PackedRow, EveryCodeUnderEveryScale) {
  for (const Set& set : available_sets()) {
    SCOPED_TRACE(set.name);
    for (std::size_t f = 0; f < kPackedFormats.size(); ++f) {
      const PackedFormat& format = kPackedFormats[f];
      SCOPED_TRACE(format.name);
      const int codes = format.code_type == CodeType::e2m1 ? 16 : 256;
      std::vector<float> row(576);
      std::vector<std::uint16_t> bf16(576), f16(576);
      for (int code = 0; code < codes; ++code) {
        for (int scale = 0; scale < 256; ++scale) {
          const TokenBytes token(format, code, scale);
          const double exact =
              (format.code_type == CodeType::e2m1 ? value_of_e2m1(code) : value_of_e4m3(code)) * token.scale_value(format, scale);
          const float want = static_cast<float>(exact);
          set.kernels.packed_rows.decode[f][0](token.bytes(), row.data());
          set.kernels.packed_rows.decode[f][1](token.bytes(), f16.data());
          set.kernels.packed_rows.decode[f][2](token.bytes(), bf16.data());
          for (const int at : {0, 1, format.group, format.codes - 1}) {
            const auto i = static_cast<std::size_t>(at);
            ASSERT_TRUE(same(row[i], want)) << code << " " << scale << ": " << row[i] << " instead of " << want;
            ASSERT_TRUE(same(detail::f32_from_bf16(bf16[i]), detail::f32_from_bf16(detail::bf16_from_f32(want)))) << code << " " << scale;
            ASSERT_TRUE(same(detail::f32_from_f16(f16[i]), detail::f32_from_f16(detail::f16_from_f32(want)))) << code << " " << scale;
          }
          for (int i = 0; i < format.rope; ++i) {
            std::uint16_t bits = 0;
            std::memcpy(&bits, &token.rope[static_cast<std::size_t>(1 + 2 * i)], 2);
            ASSERT_TRUE(same(row[static_cast<std::size_t>(format.codes + i)], detail::f32_from_bf16(bits)));
          }
        }
      }
    }
  }
}

/// The nearest of the eight magnitudes, and the even code of two that are equally near.
unsigned nearest_e2m1(double value) {
  const double size = std::min(std::fabs(value), 6.0);
  unsigned best = 0;
  for (unsigned code = 1; code < 8; ++code) {
    const double now = std::fabs(size - value_of_e2m1(static_cast<int>(code))),
                 before = std::fabs(size - value_of_e2m1(static_cast<int>(best)));
    if (now < before || (now == before && code % 2 == 0)) best = code;
  }
  return best | (std::signbit(value) ? 8U : 0U);
}

TEST(PackedRow, E2m1RoundsToNearestEvenAndSaturates) {
  std::vector<float> values;
  for (const float edge : {0.0f, 0.25f, 0.5f, 0.75f, 1.0f, 1.25f, 1.5f, 1.75f, 2.0f, 2.5f, 3.0f, 3.5f, 4.0f, 5.0f, 6.0f, 7.0f, 1e30f,
                           std::numeric_limits<float>::infinity()}) {
    for (const float value : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, 100.0f)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  values.resize((values.size() + 15) / 16 * 16);
  for (const Set& set : available_sets()) {
    SCOPED_TRACE(set.name);
    for (const float scale : {1.0f, 0.25f, 0.0f}) {
      std::vector<std::uint8_t> codes(values.size() / 2, 0xff);
      set.kernels.packed_rows.encode_e2m1[0](codes.data(), values.data(), scale, static_cast<int>(values.size()));
      for (std::size_t i = 0; i < values.size(); ++i) {
        const unsigned want = scale == 0 ? 0 : nearest_e2m1(static_cast<double>(values[i] / scale));
        ASSERT_EQ(codes[i / 2] >> (i % 2 * 4) & 15U, want) << values[i] << " / " << scale;
      }
    }
  }
}

TEST(PackedRow, LargestMagnitudeSeesEveryPlaceAndNaN) {
  for (const Set& set : available_sets()) {
    SCOPED_TRACE(set.name);
    for (std::size_t at = 0; at < 64; ++at) {
      std::vector<float> values(64, 0.5f);
      values[at] = -3.0f;
      EXPECT_EQ(set.kernels.packed_rows.largest[0](values.data(), 64), 3.0f);
      values[at] = -std::numeric_limits<float>::infinity();
      EXPECT_EQ(set.kernels.packed_rows.largest[0](values.data(), 64), std::numeric_limits<float>::infinity());
      values[at] = -std::nanf("");
      const float found = set.kernels.packed_rows.largest[0](values.data(), 64);
      EXPECT_TRUE(std::isnan(found) && std::signbit(found));
    }
    std::vector<float> zeros(64, -0.0f);
    EXPECT_EQ(set.kernels.packed_rows.largest[0](zeros.data(), 64), 0.0f);
  }
}

}  // namespace
}  // namespace fovea::cpu
