// SPDX-License-Identifier: Apache-2.0
/// 8-bit attention in one call against unquantised attention in double precision: the gates, and what must not matter.
#include "quantized_case.hpp"

namespace fovea::check {
namespace {

struct Accuracy {
  double cosine = 0, relative_l1 = 0;
};

Accuracy accuracy_of(const std::vector<float>& got, const std::vector<double>& want) {
  double product = 0, got2 = 0, want2 = 0, error = 0, size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double x = got[i];
    product += x * want[i];
    got2 += x * x;
    want2 += want[i] * want[i];
    error += std::fabs(x - want[i]);
    size += std::fabs(want[i]);
  }
  return {product / std::sqrt(got2 * want2), error / size};
}

void expect_gate(const QuantizedCase& spec) {
  const BoundQuantized bound(spec);
  const reference::AttentionOutput want = bound.exact();
  const bool e4m3 = spec.v_dtype == DType::e4m3;
  for (const std::string& name : available("quantize_and_attend")) {
    poison(bound.out);
    poison(bound.lse);
    const auto plan = plan_quantize_and_attend(bound.whole_desc(), {}, {.implementation = name});
    ASSERT_TRUE(plan) << plan.error().message;
    const TestWorkspace workspace(plan->workspace_bytes());
    ASSERT_TRUE(plan->run(bound.whole_args(), workspace.get()));
    const Accuracy accuracy = accuracy_of(take(bound.out), want.out);
    std::printf("%s, %s: cosine %.6f, relative L1 %.4f\n", spec.name.c_str(), name.c_str(), accuracy.cosine, accuracy.relative_l1);
    EXPECT_GE(accuracy.cosine, e4m3 ? 0.9985 : 0.9998) << name;
    EXPECT_LE(accuracy.relative_l1, e4m3 ? 0.055 : 0.02) << name;
  }
}

TEST(QuantizedAccuracy, NormalAndBiasedData) {
  for (const DType v_dtype : {DType::f16, DType::e4m3}) {
    for (const Int8Granularity granularity : {Int8Granularity::block, Int8Granularity::warp, Int8Granularity::thread}) {
      QuantizedCase spec{.v_dtype = v_dtype, .groups = {granularity}, .heads = 2, .kv_heads = 1, .dim = 128, .lengths = {{512, 512}}};
      const std::string suffix = std::string(name_of(v_dtype)) + ", granularity " + std::to_string(static_cast<int>(granularity));
      spec.name = "normal, " + suffix;
      expect_gate(spec);
      spec.name = "K biased, " + suffix;
      spec.k_bias = 8;
      expect_gate(spec);
    }
  }
}

/// Smoothing is what holds the gate: without it the same data breaks it.
TEST(QuantizedAccuracy, BiasedDataNeedsSmoothing) {
  const QuantizedCase spec{.dim = 128, .lengths = {{256, 256}}, .smooth_k = false, .k_bias = 8};
  const BoundQuantized bound(spec);
  const auto plan = plan_quantize_and_attend(bound.whole_desc());
  ASSERT_TRUE(plan);
  const TestWorkspace workspace(plan->workspace_bytes());
  ASSERT_TRUE(plan->run(bound.whole_args(), workspace.get()));
  EXPECT_GT(accuracy_of(take(bound.out), bound.exact().out).relative_l1, 0.02);
}

/// Keys that no row sees may hold NaN: neither means nor scales notice.
TEST(QuantizedAccuracy, UnseenKeysMayBeNan) {
  for (const DType v_dtype : {DType::f16, DType::e4m3}) {
    QuantizedCase spec{.name = "unseen NaN", .v_dtype = v_dtype, .lengths = {{300, 420}}, .smooth_v = true, .unseen_nan = true};
    spec.mask = {.right = 0, .anchor = Anchor::top_left};
    expect_gate(spec);
    spec.mask = {.left = 10, .right = 0};
    spec.name = "unseen NaN before the window";
    expect_gate(spec);
  }
}

/// A NaN that is seen makes its group NaN and nothing else: rows before the group's first key stay what they were.
TEST(QuantizedAccuracy, ANanStaysInItsGroup) {
  const QuantizedCase spec{.lengths = {{256, 256}}, .smooth_k = false, .mask = {.right = 0}};
  for (const std::string& name : available("quantize_and_attend")) {
    BoundQuantized bound(spec);
    bound.k.set(bound.at(bound.k, 0, 130, 1) + 5, std::nanf(""));
    const auto plan = plan_quantize_and_attend(bound.whole_desc(), {}, {.implementation = name});
    ASSERT_TRUE(plan);
    const TestWorkspace workspace(plan->workspace_bytes());
    ASSERT_TRUE(plan->run(bound.whole_args(), workspace.get()));
    for (std::int64_t row = 0; row < 256; ++row) {
      EXPECT_FALSE(std::isnan(bound.out.at(bound.at(bound.out, 0, row, 0)))) << name << " row " << row;
      // keys 130 and 131 share a group with 138, 139, ...: the first of it that a row sees is 130
      EXPECT_EQ(std::isnan(bound.out.at(bound.at(bound.out, 0, row, 1))), row >= 130) << name << " row " << row;
    }
  }
}

template <class Plan>
std::string error_of(const Plan& plan) {
  return plan ? "none" : plan.error().message;
}

TEST(QuantizedErrors, NameTheFieldAndTheValue) {
  const BoundQuantized bound(QuantizedCase{});
  const auto expect = [](const std::string& message, const char* part) { EXPECT_NE(message.find(part), std::string::npos) << message; };

  QuantizeQkInt8Desc qk = bound.qk_desc();
  qk.groups.warp_rows = 24;
  expect(error_of(plan_quantize_qk_int8(qk)), "groups.warp_rows: got 24, want 32 or 16");
  qk = bound.qk_desc();
  qk.q_int8.dtype = DType::e4m3;
  expect(error_of(plan_quantize_qk_int8(qk)), "q_int8.dtype: got e4m3, want i8");
  qk = bound.qk_desc();
  qk.q_scale.shape[2] = 7;
  expect(error_of(plan_quantize_qk_int8(qk)), "q_scale.shape[2] (group): got 7, want 32");
  qk = bound.qk_desc();
  qk.k_mean.reset();
  expect(error_of(plan_quantize_qk_int8(qk)), "lse_shift: got a tensor");

  QuantizeVDesc v = bound.v_desc();
  v.v_scale = bound.v_scale.desc();
  expect(error_of(plan_quantize_v(v)), "v_scale: got a tensor, want a tensor for e4m3, none for f16");

  QuantizedAttentionDesc attention = bound.attention_desc();
  attention.k.dtype = DType::f16;
  expect(error_of(plan_quantized_attention(attention)), "k.dtype: got f16, want i8");
  attention = bound.attention_desc();
  attention.lse.reset();
  expect(error_of(plan_quantized_attention(attention)), "lse_shift: got a tensor");

  QuantizeAndAttendDesc whole = bound.whole_desc();
  whole.v_dtype = DType::bf16;
  expect(error_of(plan_quantize_and_attend(whole)), "v_dtype: got bf16, want f16 or e4m3");
  const BoundQuantized narrow(QuantizedCase{.dim = 72});
  const auto declined = plan_quantize_and_attend(narrow.whole_desc());
  ASSERT_FALSE(declined);
  EXPECT_EQ(declined.error().code, ErrorCode::unsupported);
  expect(declined.error().declines.back().reason, "q.shape (head_dim): got 72, want 64, 96, 128 or 256");

  const auto plan = plan_quantize_and_attend(bound.whole_desc());
  ASSERT_TRUE(plan);
  expect(plan->run(bound.whole_args()).error().message, "workspace.bytes: got null");
  const TestWorkspace workspace(plan->workspace_bytes());
  QuantizeAndAttendArgs args = bound.whole_args();
  args.k = nullptr;
  expect(plan->run(args, workspace.get()).error().message, "args.k (pointer): got null");
}

}  // namespace
}  // namespace fovea::check
