// SPDX-License-Identifier: Apache-2.0
/// run() allocates nothing, for every operation and every implementation but the reference.
#include <gtest/gtest.h>

#include <set>

#include "allocations.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

/// Streamed, packed and split work, ragged batches, scales, sinks, and values that are not finite. Together they reach every
/// implementation.
constexpr const char* kCases[] = {"attention/ragged/bf16-mixed",
                                  "attention/scales/per-head-out-bf16",
                                  "attention/gqa/f16-9on3",
                                  "attention_backward/gqa/bf16-6on2",
                                  "attention_backward/ragged/f32-padded-sink",
                                  "attention_backward/values/bf16-nan-key-causal",
                                  "attention_backward/blocks/bf16-nan-key",
                                  "paged_attention/mixed/bf16-page16",
                                  "paged_attention/mixed/bf16-on-e4m3-page3",
                                  "paged_attention/split/f32-one-sequence",
                                  "paged_cache_append/page/bf16-on-e4m3-page16",
                                  "merge_states/empty/bf16-some-of-33",
                                  "latent_attention/split/bf16-h16",
                                  "latent_attention/ragged/bf16-h9-page1",
                                  "latent_attention/packed/v32_fp8-h64",
                                  "sparse_latent_attention/split/v32_fp8-extra",
                                  "sparse_latent_attention/flat/bf16-lengths",
                                  "sparse_latent_attention/extra/v41_fp8-and-fp4-h64",
                                  "quantize_latent_cache/format/v4_fp8-bf16-power-of-two",
                                  "dequantize_latent_cache/format/v41_fp4-f16",
                                  "index_logits/paged/lengths",
                                  "topk_rows/ranges/f32-odd",
                                  "quantize_qk_int8/ragged/thread32",
                                  "quantize_v/smoothing/both-e4m3",
                                  "quantized_attention/ragged/warp16-e4m3",
                                  "quantize_and_attend/head_dim/128-f16"};

/// A caller's pool of one thread. A build without OpenMP starts standard threads, which allocates.
void run_in_turn(int threads, void (*body)(void* context, int thread), void* context) {
  for (int thread = 0; thread < threads; ++thread) body(context, thread);
}

TEST(Allocations, NoneWhileAPlanRuns) {
  set_parallel_for(run_in_turn);
  std::set<std::string_view> counted, all;
  for (const char* name : kCases) {
    const AnyCase* entry = find_any_case(name);
    ASSERT_NE(entry, nullptr) << name;
    const auto trial = entry->bind();
    for (const ImplementationInfo& info : implementations()) {
      if (!info.available || info.backend != Backend::cpu || info.name.starts_with("reference")) continue;
      all.insert(info.name);
      if (info.operation != entry->operation) continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(info.name));
      const auto planned = trial->plan({.implementation = info.name});
      if (!planned) continue;  // the table test checks declines
      const HostileWorkspace workspace(planned->workspace_bytes);
      const Workspace memory = workspace.view();
      ASSERT_TRUE(planned->run(memory));
      const std::int64_t before = allocations();
      const bool done = static_cast<bool>(planned->run(memory)) && static_cast<bool>(planned->prepare(memory)) &&
                        static_cast<bool>(planned->run_prepared(memory));
      EXPECT_EQ(allocations() - before, 0);
      EXPECT_TRUE(done);
      counted.insert(info.name);
    }
  }
  set_parallel_for(nullptr);
  EXPECT_EQ(counted, all) << "an implementation that no case here reaches";
}

}  // namespace
}  // namespace fovea::check
