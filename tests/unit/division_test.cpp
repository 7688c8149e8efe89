// SPDX-License-Identifier: Apache-2.0
/// Division by a known number against the processor's own, where quotients change, at the ends, and in between.
#include "op/common/division.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>

namespace fovea::detail {
namespace {

constexpr int kLargest = std::numeric_limits<int>::max();

void check(int divisor) {
  const FastDivmod by(divisor);
  std::mt19937 random(static_cast<unsigned>(divisor));
  std::uniform_int_distribution<int> any(0, kLargest);
  for (int i = 0; i < 1000; ++i) {
    const int x = any(random), multiple = x / divisor * divisor;
    for (const int y : {x, multiple, multiple > 0 ? multiple - 1 : 0}) ASSERT_EQ(by.quotient(y), y / divisor) << y << " / " << divisor;
  }
  for (const int y : {0, 1, divisor - 1, divisor, kLargest - 1, kLargest}) ASSERT_EQ(by.quotient(y), y / divisor) << y << " / " << divisor;
}

TEST(FastDivmod, SmallDivisors) {
  for (int divisor = 1; divisor <= 4096; ++divisor) check(divisor);
}

TEST(FastDivmod, PowersOfTwoAndTheirNeighbours) {
  for (std::int64_t power = 1; power <= kLargest; power *= 2) {
    for (std::int64_t divisor = power - 1; divisor <= power + 1; ++divisor) {
      if (divisor >= 1) check(static_cast<int>(divisor));
    }
  }
  check(kLargest);
}

TEST(FastDivmod, OneDividesByDefault) { EXPECT_EQ(FastDivmod().quotient(kLargest), kLargest); }

}  // namespace
}  // namespace fovea::detail
