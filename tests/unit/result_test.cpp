// SPDX-License-Identifier: Apache-2.0
/// Results as callers keep them: in variables, constant or not, and on the fly.
#include "fovea/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "fovea/attention.hpp"

namespace fovea {
namespace {

using Number = Result<int>;
static_assert(std::is_same_v<decltype(std::declval<Number&>().value()), int&>);
static_assert(std::is_same_v<decltype(std::declval<const Number&>().value()), const int&>);
static_assert(std::is_same_v<decltype(std::declval<Number>().value()), int>);  // no reference to what is gone

Error refusal() { return {.code = ErrorCode::invalid_argument, .message = "k.shape[2] (kv_head): got 6, want a divisor of 32"}; }

/// The message that a call throws.
template <class Call>
std::string thrown(const Call& call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception.error().message;
  }
  return "nothing";
}

TEST(Result, ValueOfAKeptResultIsPartOfIt) {
  Number result = 3;
  result.value() = 4;
  const Number& same = result;
  EXPECT_EQ(same.value(), 4);
  EXPECT_EQ(&same.value(), &*result);
}

TEST(Result, ValueMovesOutOfATemporary) {
  Result<std::unique_ptr<int>> kept = std::make_unique<int>(5);
  EXPECT_EQ(*kept.value(), 5);
  const std::unique_ptr<int> taken = std::move(kept).value();
  EXPECT_EQ(*taken, 5);
}

TEST(Result, ValueOfAnErrorThrowsItInEveryForm) {
  Number result = refusal();
  const Number constant = refusal();
  EXPECT_EQ(thrown([&] { (void)result.value(); }), refusal().message);
  EXPECT_EQ(thrown([&] { (void)constant.value(); }), refusal().message);
  EXPECT_EQ(thrown([&] { (void)std::move(result).value(); }), refusal().message);
  EXPECT_EQ(thrown([&] { Result<void>(refusal()).value(); }), refusal().message);
}

TEST(Result, PlansAreKeptWithTheirResult) {
  const TensorDesc rows = contiguous(DType::f32, {1, 2, 1, 8});
  const auto planned = plan_attention({.q = rows, .k = rows, .v = rows, .out = rows});
  EXPECT_FALSE(planned.value().implementation().empty());
  const AttentionPlan copy = planned.value();
  EXPECT_EQ(copy.implementation(), planned.value().implementation());
}

}  // namespace
}  // namespace fovea
