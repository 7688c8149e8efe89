// SPDX-License-Identifier: Apache-2.0
/// The integer conversions of op/common/numeric.hpp against the reference's statement of each format, over every code and every
/// rounding boundary.
#include "op/common/numeric.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "reference/element.hpp"

namespace fovea::detail {
namespace {

/// Both sides of one format, as functions of the code or of the value.
struct Format {
  DType dtype;
  std::uint32_t codes;
  float (*decode)(std::uint32_t);
  std::uint32_t (*encode)(float);
};

const Format kFormats[] = {
    {DType::bf16, 1U << 16, [](std::uint32_t c) { return f32_from_bf16(static_cast<std::uint16_t>(c)); },
     [](float x) -> std::uint32_t { return bf16_from_f32(x); }},
    {DType::f16, 1U << 16, [](std::uint32_t c) { return f32_from_f16(static_cast<std::uint16_t>(c)); },
     [](float x) -> std::uint32_t { return f16_from_f32(x); }},
    {DType::e4m3, 1U << 8, [](std::uint32_t c) { return f32_from_e4m3(static_cast<std::uint8_t>(c)); },
     [](float x) -> std::uint32_t { return e4m3_from_f32(x); }},
};

double reference_decode(DType dtype, std::uint32_t code) { return reference::load(dtype, &code, 0); }

std::uint32_t reference_encode(DType dtype, float value) {
  std::uint32_t code = 0;
  reference::store(dtype, &code, 0, value);
  return code;
}

void expect_same_encoding(const Format& format, float value) {
  const std::uint32_t got = format.encode(value), want = reference_encode(format.dtype, value);
  if (std::isnan(value)) {
    EXPECT_TRUE(std::isnan(format.decode(got))) << name_of(format.dtype);
  } else {
    EXPECT_EQ(got, want) << name_of(format.dtype) << " of " << std::hexfloat << value;
  }
}

TEST(Numeric, EveryCodeDecodes) {
  for (const Format& format : kFormats) {
    for (std::uint32_t code = 0; code < format.codes; ++code) {
      const double want = reference_decode(format.dtype, code);
      const float got = format.decode(code);
      ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : (got == want && std::signbit(got) == std::signbit(want)))
          << name_of(format.dtype) << " " << code;
    }
  }
}

/// Each representable value, the midpoint to its neighbour, and the floats beside both.
TEST(Numeric, EveryRoundingBoundaryEncodes) {
  for (const Format& format : kFormats) {
    for (std::uint32_t code = 0; code + 1 < format.codes; ++code) {
      const float low = format.decode(code), high = format.decode(code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      const auto middle = static_cast<float>((static_cast<double>(low) + high) / 2);
      for (const float value : {low, middle}) {
        expect_same_encoding(format, value);
        expect_same_encoding(format, std::nextafter(value, 1e30f));
        expect_same_encoding(format, std::nextafter(value, -1e30f));
      }
    }
  }
}

TEST(Numeric, ExtremesEncode) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for (const Format& format : kFormats) {
    for (const float value :
         {0.0f, -0.0f, kInf, -kInf, kMax, -kMax, kTiny, -kTiny, 448.0f, 464.0f, 465.0f, 65504.0f, 65519.0f, 65520.0f, std::nanf("")}) {
      expect_same_encoding(format, value);
    }
  }
}

}  // namespace
}  // namespace fovea::detail
