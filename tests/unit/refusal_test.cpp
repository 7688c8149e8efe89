// SPDX-License-Identifier: Apache-2.0
/// The message of a refused call: first the reasons that its caller can do most about.
#include <gtest/gtest.h>

#include "fovea/attention.hpp"
#include "plan/select.hpp"

namespace fovea::detail {
namespace {

const Decline kOtherDevice = {"cuda.sm90.attention", "device.backend: got cpu, want cuda"};
const Decline kOtherMachine = {"cpu.amx.attention", "not available on this machine: needs amx_bf16"};
const Decline kOtherCapability = {"cuda.sm90.attention", "device (compute capability): got 8.0, want 9.0"};
const Decline kOption = {"cuda.sm90.attention", "bias: got a value, want none (the implementation does not handle it)"};
const Decline kDim = {"cpu.avx2.attention", "q.shape (head_dim_qk): got 60, want a multiple of 8"};
const Decline kType = {"cpu.scalar.attention", "q.dtype: got f64, want f32"};
constexpr std::string_view kNobody = "; no implementation on this device accepts the call";

std::string text_of(std::string_view reason) { return std::string(reason).append(kNobody); }

TEST(Refusal, BeginsWithTheReasonOfThisDevice) {
  const Error error = refusal_of({kOtherDevice, kOtherMachine, kDim});
  EXPECT_EQ(error.code, ErrorCode::unsupported);
  EXPECT_EQ(error.message, text_of(kDim.reason));
  EXPECT_EQ(to_string(error), text_of(kDim.reason) + "\n  " + kDim.implementation + ": " + kDim.reason + "\n  " +
                                  kOtherMachine.implementation + ": " + kOtherMachine.reason + "\n  " + kOtherDevice.implementation + ": " +
                                  kOtherDevice.reason);
}

TEST(Refusal, NamesEachChangeOnce) { EXPECT_EQ(refusal_of({kDim, kType, kDim}).message, text_of(kDim.reason + ", or " + kType.reason)); }

TEST(Refusal, PutsOptionsThatOthersHandleLast) {
  EXPECT_EQ(refusal_of({kOption, kDim}).message, text_of(kDim.reason));
  EXPECT_EQ(refusal_of({kOption, kDim}).declines.front().implementation, kDim.implementation);
  EXPECT_EQ(refusal_of({kOtherMachine, kOption}).message, text_of(kOption.reason));
}

TEST(Refusal, SaysWhatTheMachineLacksWhereTheCallIsRight) {
  EXPECT_EQ(refusal_of({kOtherDevice, kOtherMachine}).message, text_of(kOtherMachine.reason));
  EXPECT_EQ(refusal_of({kOtherCapability, kDim}).message, text_of(kDim.reason));
  EXPECT_EQ(refusal_of({kOtherDevice, kOtherDevice}).message, text_of(kOtherDevice.reason));
}

TEST(Refusal, OfACallBeginsWithItsField) {
  const TensorDesc rows = contiguous(DType::f32, {1, 2, 1, 12});
  const auto planned = plan_attention({.q = rows, .k = rows, .v = rows, .out = rows});
  ASSERT_FALSE(planned);
  EXPECT_TRUE(planned.error().message.starts_with("q.shape (head_dim_qk): got 12, want a multiple of 8")) << planned.error().message;
}

}  // namespace
}  // namespace fovea::detail
