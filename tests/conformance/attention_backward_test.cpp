// SPDX-License-Identifier: Apache-2.0
/// What the backward pass promises besides right gradients: no memory that grows with the square of a length.
#include "fovea/attention_backward.hpp"

#include <gtest/gtest.h>

#include "fovea/info.hpp"

namespace fovea::check {
namespace {

double workspace_bytes(std::int64_t length, std::string_view implementation) {
  const TensorDesc q = contiguous(DType::bf16, {1, length, 4, 64}), k = contiguous(DType::bf16, {1, length, 2, 64});
  const AttentionBackwardDesc desc{
      .forward = {.q = q, .k = k, .v = k, .out = q, .lse = contiguous(DType::f32, {1, 4, length})}, .dout = q, .dq = q, .dk = k, .dv = k};
  const auto plan = plan_attention_backward(desc, {}, {.implementation = implementation});
  return plan ? static_cast<double>(plan->workspace_bytes()) : -1.0;
}

TEST(AttentionBackward, WorkspaceGrowsLinearly) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != "attention_backward" || !info.available || info.name.starts_with("reference")) continue;
    EXPECT_GT(workspace_bytes(4096, info.name), 0);
    EXPECT_LE(workspace_bytes(1 << 20, info.name), 256 * workspace_bytes(4096, info.name)) << info.name;
  }
}

}  // namespace
}  // namespace fovea::check
