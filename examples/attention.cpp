// SPDX-License-Identifier: Apache-2.0
/// Causal attention over a whole prompt with grouped-query heads: describe, plan, run.
#include <cstdio>
#include <fovea/fovea.hpp>

#include "support.hpp"

int main() {
  constexpr std::int64_t batch = 2, seq = 128, heads = 8, kv_heads = 2, head_dim = 64;
  const std::vector<float> q = random_values(batch * seq * heads * head_dim, 1);
  const std::vector<float> k = random_values(batch * seq * kv_heads * head_dim, 2);
  const std::vector<float> v = random_values(batch * seq * kv_heads * head_dim, 3);
  std::vector<float> out = unwritten(batch * seq * heads * head_dim);

  // [readme]
  // Describe: shapes, strides, types and options; no pointers.
  const auto rows = fovea::contiguous(fovea::DType::f32, {batch, seq, heads, head_dim});
  const auto keys = fovea::contiguous(fovea::DType::f32, {batch, seq, kv_heads, head_dim});
  const fovea::AttentionDesc desc{.q = rows, .k = keys, .v = keys, .out = rows, .mask = fovea::causal()};

  // Plan: the first implementation that accepts. value() throws; test the result instead to get the error.
  const fovea::AttentionPlan plan = fovea::plan_attention(desc).value();

  // Run, as often as you like: the pointers of this call, and scratch memory that you own.
  Scratch workspace(plan.workspace_bytes());
  plan.run({.q = q.data(), .k = k.data(), .v = v.data(), .out = out.data()}, workspace).value();
  // [/readme]

  std::printf("%sout[0] = %g\n", plan.explain().c_str(), static_cast<double>(out[0]));
  return all_finite(out) ? 0 : 1;
}
