// SPDX-License-Identifier: Apache-2.0
/// Many answers to one question share its keys and values. Attention over the shared prefix (every answer's query in one
/// call, one pass over the prefix) and over each answer's own tokens, merged, equals attention over everything.
#include <array>
#include <cstdio>
#include <fovea/fovea.hpp>

#include "support.hpp"

namespace {

constexpr std::int64_t kAnswers = 6, kPrefix = 96, kOwn = 10, kHeads = 4, kHeadDim = 32;
constexpr std::int64_t kRow = kHeads * kHeadDim;

fovea::TensorDesc f32(std::initializer_list<std::int64_t> shape) { return fovea::contiguous(fovea::DType::f32, shape); }

/// Attention with its logarithmic denominator; `shape` is (batch, queries, keys). `lse` [batch, head, queries] may be null.
void attend(std::array<std::int64_t, 3> shape, const fovea::AttentionArgs& args) {
  const auto [batch, queries, keys] = shape;
  const auto rows = f32({batch, queries, kHeads, kHeadDim});
  const auto kv = f32({batch, keys, kHeads, kHeadDim});
  fovea::AttentionDesc desc{.q = rows, .k = kv, .v = kv, .out = rows};
  if (args.lse != nullptr) desc.lse = f32({batch, kHeads, queries});
  const auto plan = fovea::plan_attention(desc).value();
  Scratch workspace(plan.workspace_bytes());
  plan.run(args, workspace).value();
}

/// Each answer's prefix and own tokens in one row of keys. A library without merge_states would have to store this.
std::vector<float> side_by_side(const std::vector<float>& prefix, const std::vector<float>& own) {
  std::vector<float> all;
  for (std::int64_t answer = 0; answer < kAnswers; ++answer) {
    all.insert(all.end(), prefix.begin(), prefix.end());
    all.insert(all.end(), own.begin() + answer * kOwn * kRow, own.begin() + (answer + 1) * kOwn * kRow);
  }
  return all;
}

}  // namespace

int main() {
  const std::vector<float> q = random_values(kAnswers * kRow, 1);
  const std::vector<float> prefix_k = random_values(kPrefix * kRow, 2), prefix_v = random_values(kPrefix * kRow, 3);
  const std::vector<float> own_k = random_values(kAnswers * kOwn * kRow, 4), own_v = random_values(kAnswers * kOwn * kRow, 5);
  std::vector<float> prefix_out = unwritten(kAnswers * kRow), own_out = prefix_out, merged = prefix_out, expected = prefix_out;
  std::vector<float> prefix_lse = unwritten(kAnswers * kHeads), own_lse = prefix_lse;

  attend({1, kAnswers, kPrefix},
         {.q = q.data(), .k = prefix_k.data(), .v = prefix_v.data(), .out = prefix_out.data(), .lse = prefix_lse.data()});
  attend({kAnswers, 1, kOwn}, {.q = q.data(), .k = own_k.data(), .v = own_v.data(), .out = own_out.data(), .lse = own_lse.data()});

  const auto rows = f32({kAnswers, kHeads, kHeadDim});
  auto prefix_lse_desc = f32({kAnswers, kHeads});
  prefix_lse_desc.strides = {1, kAnswers};  // the first call wrote it as [head, query]
  const auto plan = fovea::plan_merge_states({.parts = {{rows, prefix_lse_desc}, {rows, f32({kAnswers, kHeads})}}, .out = rows}).value();
  const fovea::MergeStatesArgs::Part parts[] = {{prefix_out.data(), prefix_lse.data()}, {own_out.data(), own_lse.data()}};
  Scratch workspace(plan.workspace_bytes());
  plan.run({.parts = parts, .out = merged.data()}, workspace).value();

  const std::vector<float> all_k = side_by_side(prefix_k, own_k), all_v = side_by_side(prefix_v, own_v);
  attend({kAnswers, 1, kPrefix + kOwn}, {.q = q.data(), .k = all_k.data(), .v = all_v.data(), .out = expected.data()});
  const bool equal = all_near(merged, expected, 1e-5f);
  std::printf("%s: merged and direct attention %s\n", std::string(plan.implementation()).c_str(), equal ? "agree" : "differ");
  return equal ? 0 : 1;
}
