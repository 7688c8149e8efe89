// SPDX-License-Identifier: Apache-2.0
/// Promises of the backward pass besides right gradients: no memory that grows with the square of a length, and what it refuses of dlse.
#include "fovea/attention_backward.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "fovea/info.hpp"

namespace fovea::check {
namespace {

AttentionBackwardDesc describe(std::int64_t length) {
  const TensorDesc q = contiguous(DType::bf16, {1, length, 4, 64}), k = contiguous(DType::bf16, {1, length, 2, 64});
  return {
      .forward = {.q = q, .k = k, .v = k, .out = q, .lse = contiguous(DType::f32, {1, 4, length})}, .dout = q, .dq = q, .dk = k, .dv = k};
}

double workspace_bytes(std::int64_t length, std::string_view implementation) {
  const auto plan = plan_attention_backward(describe(length), {}, {.implementation = implementation});
  return plan ? static_cast<double>(plan->workspace_bytes()) : -1.0;
}

TEST(AttentionBackward, WorkspaceGrowsLinearly) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != "attention_backward" || !info.available || info.name.starts_with("reference")) continue;
    EXPECT_GT(workspace_bytes(4096, info.name), 0);
    EXPECT_LE(workspace_bytes(1 << 20, info.name), 256 * workspace_bytes(4096, info.name)) << info.name;
  }
}

TEST(AttentionBackward, DescriptionsOfDlse) {
  const auto refusal = [](const TensorDesc& dlse) {
    AttentionBackwardDesc desc = describe(5);
    desc.dlse = dlse;
    const auto plan = plan_attention_backward(desc);
    return plan ? std::string() : plan.error().message;
  };
  TensorDesc shared = contiguous(DType::f32, {1, 4, 5});
  shared.strides = {0, 0, 0};  // one number for all rows, as the gradient of a sum has it
  EXPECT_EQ(refusal(shared), "");
  EXPECT_EQ(refusal(contiguous(DType::bf16, {1, 4, 5})), "dlse.dtype: got bf16, want f32");
  EXPECT_EQ(refusal(contiguous(DType::f32, {1, 4, 6})), "dlse.shape[2] (seq_q): got 6, want 5 (rows of q)");
  EXPECT_EQ(refusal(contiguous(DType::f32, {5, 4})), "dlse.rank: got 2, want 3 [batch, head, seq_q]");
}

TEST(AttentionBackward, PointersOfDlse) {
  AttentionBackwardDesc desc = describe(1);
  desc.dlse = desc.forward.lse;
  alignas(16) std::array<std::int16_t, 256> of[8]{};
  alignas(16) std::array<float, 5> lse{}, dlse{};
  const AttentionBackwardArgs good{.forward = {.q = &of[0], .k = &of[1], .v = &of[2], .out = &of[3], .lse = lse.data()},
                                   .dout = &of[4],
                                   .dq = &of[5],
                                   .dk = &of[6],
                                   .dv = &of[7],
                                   .dlse = dlse.data()};
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != "attention_backward" || !info.available) continue;
    const auto plan = plan_attention_backward(desc, {}, {.implementation = info.name});
    if (!plan) continue;  // of another device
    std::vector<std::byte> workspace(plan->workspace_bytes());
    const auto refusal = [&](const float* pointer) {
      AttentionBackwardArgs args = good;
      args.dlse = pointer;
      const auto ran = plan->run(args, {workspace.data(), workspace.size()});
      return ran ? std::string() : ran.error().message;
    };
    EXPECT_EQ(refusal(nullptr), "args.dlse (pointer): got null, want an address") << info.name;
    const auto* misaligned = reinterpret_cast<const float*>(reinterpret_cast<const char*>(dlse.data()) + 2);
    EXPECT_EQ(refusal(misaligned), "args.dlse (address modulo 4): got 2, want 0, the alignment that the description promised") << info.name;
  }
}

}  // namespace
}  // namespace fovea::check
