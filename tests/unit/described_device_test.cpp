// SPDX-License-Identifier: Apache-2.0
/// Planning for a device that is only described. Entries are asked although this machine has no such device, and their plans do not run.
#include <gtest/gtest.h>

#include "plan/select.hpp"

namespace fovea::detail {
namespace {

struct Ran final : PlanState<AttentionArgs> {
  Ran() { implementation = "cuda.fake.attention", workspace_bytes = 128; }
  Result<void> prepare(const AttentionArgs&, Workspace, Stream) const override { return {}; }
  Result<void> run(const AttentionArgs&, Workspace, Stream, bool) const override { return {}; }
  std::string tuning() const override { return "tuned"; }
};

constexpr Implementation<Attention> kRow{"cuda.fake.attention",
                                         "",
                                         handles<Attention>(),
                                         Backend::cuda,
                                         [] { return std::string_view("no CUDA device"); },
                                         [](const AttentionProblem&, Device) -> PlanResult<AttentionArgs> {
                                           return std::shared_ptr<const PlanState<AttentionArgs>>(std::make_shared<Ran>());
                                         }};

AttentionDesc small() {
  const TensorDesc rows = contiguous(DType::f32, {1, 2, 1, 8});
  return {.q = rows, .k = rows, .v = rows, .out = rows};
}

TEST(DescribedDevice, IsPlannedForAndDoesNotRun) {
  const AttentionProblem problem = validate(small(), {}).value();
  const auto absent = plan_with(kRow, problem, {.backend = Backend::cuda}, false);
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().message, "not available on this machine: no CUDA device");
  const auto planned = plan_with(kRow, problem, {.backend = Backend::cuda, .capability = 90}, false);
  ASSERT_TRUE(planned);
  const Plan<AttentionArgs> plan(*planned, {});
  EXPECT_EQ(plan.explain(), "cuda.fake.attention: tuned\n");
  EXPECT_EQ(plan.workspace_bytes(), 128U);
  for (const Result<void>& ran : {plan.run({}), plan.prepare({}), plan.run_prepared({})}) {
    ASSERT_FALSE(ran);
    EXPECT_EQ(ran.error().message,
              "device.capability: got 90, want 0, a device of this machine (a plan for a described one explains only)");
  }
}

TEST(DescribedDevice, IsNoProcessor) {
  const auto planned = plan_attention(small(), {.capability = 90});
  ASSERT_FALSE(planned);
  EXPECT_EQ(planned.error().message, "device.capability: got 90, want 0 (of a processor)");
}

}  // namespace
}  // namespace fovea::detail
