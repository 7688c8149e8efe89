// SPDX-License-Identifier: Apache-2.0
/// Powers of two by the polynomial, on the host.
#include "gpu/cuda/sm100/exp2.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fovea::gpu::sm100 {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float power(float x) { return exp2_by_polynomial({x, 0}).x; }

TEST(Sm100Exp2, RelativeErrorIsBelowTheStatedOne) {
  double largest = 0;
  for (double x = -126; x <= 127; x += 0x1p-12) {
    const auto argument = static_cast<float>(x);
    const double want = std::exp2(static_cast<double>(argument));
    largest = std::max(largest, std::abs(static_cast<double>(power(argument)) - want) / want);
  }
  EXPECT_LT(largest, std::exp2(-18.2));  // 2^-18.4, and roundings
  EXPECT_GT(largest, std::exp2(-18.6));
}

TEST(Sm100Exp2, IntegersAreExact) {
  for (int n = -126; n <= 127; ++n) EXPECT_EQ(power(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
}

// A larger score has a larger weight, up to a rounding.
TEST(Sm100Exp2, ResultsDoNotDecrease) {
  float before = 0;
  for (double x = -130; x <= 9; x += 0x1p-12) {
    const float y = power(static_cast<float>(x));
    ASSERT_GE(y, before * (1 - 0x1p-22f)) << x;
    before = y;
  }
}

TEST(Sm100Exp2, SmallResultsAreZero) {
  for (const float x : {-127.0f, -128.0f, -1000.0f, -3e38f, -kInfinity}) EXPECT_EQ(power(x), 0.0f) << x;
  EXPECT_EQ(exp2_by_unit(-kInfinity), 0.0f);
  EXPECT_EQ(exp2_by_unit(-140), 0.0f);
}

TEST(Sm100Exp2, NaNStaysNaN) {
  EXPECT_TRUE(std::isnan(power(kNaN)));
  EXPECT_TRUE(std::isnan(power(-kNaN)));
  EXPECT_TRUE(std::isnan(exp2_by_unit(kNaN)));
}

TEST(Sm100Exp2, HalvesOfAPairAreIndependent) {
  const float2 y = exp2_by_polynomial({-kInfinity, 3});
  EXPECT_EQ(y.x, 0.0f);
  EXPECT_EQ(y.y, 8.0f);
  EXPECT_TRUE(std::isnan(exp2_by_polynomial({1, kNaN}).y));
  EXPECT_EQ(exp2_by_polynomial({1, kNaN}).x, 2.0f);
}

}  // namespace
}  // namespace fovea::gpu::sm100
