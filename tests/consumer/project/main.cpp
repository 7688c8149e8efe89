// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>
#include <fovea/fovea.hpp>
#include <memory>
#include <string>
#include <vector>

int main() {
  const auto shape = fovea::contiguous(fovea::DType::f32, {1, 1, 1, 8});
  const auto planned = fovea::plan_attention({.q = shape, .k = shape, .v = shape, .out = shape});
  const fovea::AttentionPlan& plan = planned.value();
  const std::vector<float> x(8, 2.0f);
  std::vector<float> out(8, NAN);
  std::vector<std::byte> memory(plan.workspace_bytes() + fovea::kWorkspaceAlignment);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  std::align(fovea::kWorkspaceAlignment, plan.workspace_bytes(), workspace, space);
  plan.run({.q = x.data(), .k = x.data(), .v = x.data(), .out = out.data()}, {workspace, plan.workspace_bytes()}).value();
  std::printf("%s: %g\n", std::string(plan.implementation()).c_str(), static_cast<double>(out[0]));
  return out[0] == 2.0f ? 0 : 1;  // one key: the output is its value
}
