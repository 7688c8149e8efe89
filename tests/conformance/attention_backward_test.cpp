// SPDX-License-Identifier: Apache-2.0
/// The backward pass: every implementation that this machine can run, forced by name, against the fp64 reference.
#include <gtest/gtest.h>

#include "allocations.hpp"
#include "backward_case.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

using Values = BackwardCase::Values;

std::vector<BackwardCase> cases_that_are_not_finite() {
  std::vector<BackwardCase> cases;
  for (const bool masked : {true, false}) {
    const BandMask mask = masked ? causal() : BandMask{};
    const std::string suffix = masked ? "-causal" : "-full";
    cases.push_back({.name = "nan-query" + suffix, .sequences = {{192, 192}}, .mask = mask, .values = Values::nan_query});
    cases.push_back({.name = "nan-key" + suffix, .sequences = {{192, 192}}, .mask = mask, .values = Values::nan_key});
    cases.push_back({.name = "nan-value" + suffix, .sequences = {{192, 192}}, .mask = mask, .values = Values::nan_value});
    cases.push_back({.name = "nan-dout" + suffix, .sequences = {{192, 192}}, .mask = mask, .values = Values::nan_dout});
    cases.push_back({.name = "infinite-key" + suffix, .sequences = {{192, 192}}, .mask = mask, .values = Values::infinite_key});
  }
  return cases;
}

std::vector<BackwardCase> table() {
  const BandMask top_left = causal(Anchor::top_left);
  const BandMask window{.left = 9, .right = 4};
  std::vector<BackwardCase> cases;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto add = [&](BackwardCase spec) {
      spec.dtype = dtype;
      spec.name.append("-").append(name_of(dtype));
      cases.push_back(std::move(spec));
    };
    add({.name = "full", .sequences = {{128, 96}, {128, 96}}});
    add({.name = "causal", .sequences = {{200, 200}}, .mask = causal()});
    add({.name = "tails", .dqk = 72, .dv = 40, .sequences = {{67, 101}}, .mask = causal()});
    add({.name = "one-row", .head = 64, .kv_head = 64, .dqk = 8, .dv = 16, .sequences = {{1, 1}, {1, 1}}});
    add({.name = "one-query", .sequences = {{1, 150}}, .mask = causal()});
    add({.name = "one-key", .sequences = {{150, 1}}});
    add({.name = "more-queries", .sequences = {{190, 70}}, .mask = causal(), .values = Values::unseen_nan});
    add({.name = "more-keys", .sequences = {{70, 190}}, .mask = top_left, .values = Values::unseen_nan});
    add({.name = "window", .sequences = {{230, 210}}, .mask = window, .values = Values::unseen_nan});
    add({.name = "off-diagonal", .sequences = {{150, 150}}, .mask = {.left = -20, .right = 70}, .values = Values::unseen_nan});
    add({.name = "sees-nothing", .sequences = {{40, 40}}, .mask = {.left = -30, .right = 20}, .values = Values::unseen_nan});
    add({.name = "gqa", .head = 6, .kv_head = 2, .sequences = {{90, 120}, {90, 120}}, .mask = causal()});
    add({.name = "mqa", .head = 5, .kv_head = 1, .dqk = 32, .dv = 64, .sequences = {{70, 70}}});
    add({.name = "192-128", .dqk = 192, .dv = 128, .sequences = {{110, 110}}, .mask = causal()});
    add({.name = "256", .head = 1, .kv_head = 1, .dqk = 256, .dv = 256, .sequences = {{100, 130}}, .mask = causal()});
    add({.name = "softcap", .sequences = {{120, 120}}, .mask = causal(), .softcap = 2.5f});
    add({.name = "softcap-sharp", .sequences = {{90, 90}}, .softcap = 30.0f, .values = Values::sharp});
    add({.name = "sharp", .sequences = {{90, 90}}, .mask = causal(), .values = Values::sharp});
    add({.name = "negative-scale", .sequences = {{90, 90}}, .scale = -0.3f});
    add({.name = "sink", .head = 4, .kv_head = 2, .sequences = {{90, 90}, {90, 90}}, .mask = causal(), .sink = true});
    add({.name = "ragged",
         .head = 4,
         .kv_head = 2,
         .sequences = {{0, 30}, {130, 130}, {20, 0}, {0, 0}, {1, 99}, {70, 200}},
         .ragged = true,
         .mask = causal()});
    add({.name = "ragged-padded",
         .head = 4,
         .kv_head = 2,
         .sequences = {{50, 130}, {130, 50}, {3, 7}},
         .ragged = true,
         .mask = causal(),
         .softcap = 4.0f,
         .sink = true,
         .padded = true,
         .values = Values::unseen_nan});
    add({.name = "padded",
         .head = 3,
         .kv_head = 1,
         .dqk = 40,
         .dv = 24,
         .sequences = {{70, 90}, {70, 90}},
         .mask = window,
         .padded = true});
    for (BackwardCase& spec : cases_that_are_not_finite()) add(std::move(spec));
  }
  return cases;
}

std::vector<std::string_view> available() {
  std::vector<std::string_view> names;
  for (const ImplementationInfo& info : implementations())
    if (info.operation == "attention_backward" && info.available) names.push_back(info.name);
  return names;
}

/// Plans with exactly this implementation and runs into poisoned scratch memory between red zones.
std::string run(const BoundBackward& bound, std::string_view implementation) {
  const auto plan = plan_attention_backward(bound.desc, {}, {.implementation = implementation});
  if (!plan) return plan.error().message;
  if (plan->implementation() != implementation) return "another implementation ran: " + std::string(plan->implementation());
  const HostileWorkspace workspace(plan->workspace_bytes());
  const auto done = plan->run(bound.args, workspace.view());
  if (!done) return done.error().message;
  return workspace.red_zones_intact() ? "" : "wrote beside the workspace";
}

TEST(AttentionBackward, MatchesTheReference) {
  ASSERT_GE(available().size(), 2u);
  for (const BackwardCase& spec : table()) {
    BoundBackward bound(spec);
    for (const std::string_view implementation : available()) {
      SCOPED_TRACE(spec.name + " " + std::string(implementation));
      ASSERT_EQ(run(bound, implementation), "");
      EXPECT_EQ(bound.judge(), "");
    }
  }
}

TEST(AttentionBackward, SameBitsForAnyNumberOfThreads) {
  BoundBackward bound({.name = "threads",
                       .head = 6,
                       .kv_head = 2,
                       .sequences = {{300, 310}, {70, 90}, {200, 10}},
                       .ragged = true,
                       .mask = causal(),
                       .sink = true});
  for (const std::string_view implementation : available()) {
    SCOPED_TRACE(implementation);
    std::vector<std::byte> first;
    for (const int threads : {1, 2, 5, 2}) {
      set_num_threads(threads);
      bound.reset();
      ASSERT_EQ(run(bound, implementation), "");
      if (first.empty()) first = bound.output_bits();
      EXPECT_TRUE(first == bound.output_bits()) << threads << " threads";
    }
    set_num_threads(0);
    EXPECT_EQ(bound.judge(), "");
  }
}

TEST(AttentionBackward, RunAllocatesNothing) {
  const BoundBackward bound({.name = "allocations", .head = 4, .kv_head = 2, .sequences = {{130, 130}}, .mask = causal()});
  for (const std::string_view implementation : available()) {
    if (implementation.starts_with("reference")) continue;
    const auto plan = plan_attention_backward(bound.desc, {}, {.implementation = implementation});
    ASSERT_TRUE(plan);
    const HostileWorkspace workspace(plan->workspace_bytes());
    const std::int64_t before = allocations();
    const bool done = static_cast<bool>(plan->run(bound.args, workspace.view()));
    EXPECT_EQ(allocations() - before, 0) << implementation;
    EXPECT_TRUE(done);
  }
}

TEST(AttentionBackward, WorkspaceGrowsLinearly) {
  const auto bytes = [](std::int64_t length, std::string_view implementation) {
    const TensorDesc q = contiguous(DType::bf16, {1, length, 4, 64}), k = contiguous(DType::bf16, {1, length, 2, 64});
    AttentionBackwardDesc desc{
        .forward = {.q = q, .k = k, .v = k, .out = q, .lse = contiguous(DType::f32, {1, 4, length})}, .dout = q, .dq = q, .dk = k, .dv = k};
    const auto plan = plan_attention_backward(desc, {}, {.implementation = implementation});
    return plan ? static_cast<double>(plan->workspace_bytes()) : -1.0;
  };
  for (const std::string_view implementation : available()) {
    if (implementation.starts_with("reference")) continue;
    EXPECT_GT(bytes(4096, implementation), 0);
    EXPECT_LE(bytes(1 << 20, implementation), 256 * bytes(4096, implementation)) << implementation;
  }
}

}  // namespace
}  // namespace fovea::check
