// SPDX-License-Identifier: Apache-2.0
/// Calls without queries, keys, sequences or blocks, over simulated devices. Tensors without elements have no memory.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>

#include "fake_runtime.hpp"
#include "fovea/attention_backward.hpp"
#include "fovea/latent_attention.hpp"
#include "fovea/paged_attention.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

Device fake(std::size_t i) { return {Backend::cuda, static_cast<int>(i)}; }
constexpr std::size_t kHopper = 0, kAmpere = 1;

TensorDesc aligned(TensorDesc desc) {
  desc.alignment = 16;
  return desc;
}

/// Memory that nothing reads, of a tensor that has elements.
std::byte* memory(std::uintptr_t i, std::int64_t rows) { return rows == 0 ? nullptr : reinterpret_cast<std::byte*>(i << 32); }
float* numbers(std::uintptr_t i, std::int64_t rows) { return reinterpret_cast<float*>(memory(i, rows)); }
const std::int32_t* integers(std::uintptr_t i) { return reinterpret_cast<const std::int32_t*>(memory(i, 1)); }

/// A ragged batch with so many rows in all.
struct Batch {
  std::int64_t sequences, total_q, total_k;
};

AttentionDesc dense(const Batch& batch, bool sink) {
  const TensorDesc q = aligned(contiguous(DType::bf16, {batch.total_q, 8, 128})),
                   k = aligned(contiguous(DType::bf16, {batch.total_k, 2, 128}));
  return {.q = q,
          .k = k,
          .v = k,
          .out = q,
          .lse = contiguous(DType::f32, {batch.total_q, 8}),
          .ragged = RaggedDesc{.batch = batch.sequences, .max_seq_q = batch.total_q, .max_seq_k = batch.total_k},
          .has_sink = sink};
}

AttentionArgs args_of(const Batch& batch) {
  return {.q = memory(1, batch.total_q),
          .k = memory(2, batch.total_k),
          .v = memory(3, batch.total_k),
          .out = memory(4, batch.total_q),
          .lse = numbers(5, batch.total_q),
          .sink = numbers(6, 1),
          .cu_seqlens_q = integers(7),
          .cu_seqlens_k = integers(8)};
}

/// Kernels launched by a run that succeeds.
template <class Plan, class Args>
std::size_t launched(const Result<Plan>& plan, const Args& args) {
  EXPECT_TRUE(plan) << to_string(plan.error());
  if (!plan) return 0;
  const HostileWorkspace workspace(plan->workspace_bytes());
  launches().clear();
  const Result<void> ran = plan->run(args, workspace.view());
  EXPECT_TRUE(ran) << to_string(ran.error());
  return launches().size();
}

std::size_t launched_by_gradient(std::string_view implementation, std::size_t device, const Batch& batch, bool sink) {
  const AttentionDesc forward = dense(batch, sink);
  const AttentionBackwardDesc desc{.forward = forward, .dout = forward.out, .dq = forward.q, .dk = forward.k, .dv = forward.v};
  const AttentionBackwardArgs args{.forward = args_of(batch),
                                   .dout = memory(9, batch.total_q),
                                   .dq = memory(10, batch.total_q),
                                   .dk = memory(11, batch.total_k),
                                   .dv = memory(12, batch.total_k),
                                   .dsink = sink ? numbers(13, 1) : nullptr};
  return launched(plan_attention_backward(desc, fake(device), {.implementation = implementation}), args);
}

TEST(EmptyCalls, GradientsOfNoRowsWriteNoMoreThanTheSinks) {
  for (const auto& [implementation, device] :
       {std::pair{"cuda.sm90.attention_backward", kHopper}, {"cuda.portable.attention_backward", kAmpere}}) {
    SCOPED_TRACE(implementation);
    for (const Batch& batch : {Batch{0, 0, 0}, {1, 0, 0}, {3, 0, 0}, {0, 5, 7}}) {
      EXPECT_EQ(launched_by_gradient(implementation, device, batch, false), 0U);
      EXPECT_EQ(launched_by_gradient(implementation, device, batch, true), 1U);
    }
    for (const Batch& batch : {Batch{2, 0, 300}, {2, 300, 0}}) {
      EXPECT_GT(launched_by_gradient(implementation, device, batch, false), 0U);
      EXPECT_GT(launched_by_gradient(implementation, device, batch, true), 0U);
    }
  }
}

TEST(EmptyCalls, AttentionTakesNoQueriesAndNoKeys) {
  for (const auto& [implementation, device] : {std::pair{"cuda.sm90.attention", kHopper}, {"cuda.portable.attention", kAmpere}}) {
    SCOPED_TRACE(implementation);
    for (const Batch& batch : {Batch{0, 0, 0}, {2, 0, 0}, {2, 0, 300}})
      EXPECT_EQ(launched(plan_attention(dense(batch, true), fake(device), {.implementation = implementation}), args_of(batch)), 0U);
    const Batch no_keys{2, 300, 0};
    EXPECT_GT(launched(plan_attention(dense(no_keys, true), fake(device), {.implementation = implementation}), args_of(no_keys)), 0U);
  }
}

/// As before the first token comes into a cache.
TEST(EmptyCalls, CachesMayHaveNoBlocks) {
  const TensorDesc rows = aligned(contiguous(DType::bf16, {0, 64, 1, 576})), table = contiguous(DType::i32, {2, 0});
  for (const std::int64_t seq_q : {1, 64}) {
    const LatentAttentionDesc desc{.q = aligned(contiguous(DType::bf16, {2, seq_q, 64, 576})),
                                   .out = aligned(contiguous(DType::bf16, {2, seq_q, 64, 512})),
                                   .block_table = table,
                                   .cache = {.rows = rows}};
    const auto planned = plan_latent_attention(desc, fake(kHopper), {.implementation = "cuda.sm90.latent_attention"});
    EXPECT_GT(launched(planned, LatentAttentionArgs{.q = memory(1, 1), .out = memory(2, 1), .kv_len = integers(3)}), 0U);
  }
  const TensorDesc q = aligned(contiguous(DType::bf16, {100, 8, 128})), cache = aligned(contiguous(DType::bf16, {0, 16, 2, 128}));
  const PagedAttentionDesc desc{.q = q, .k_cache = cache, .v_cache = cache, .block_table = table, .out = q, .max_seq_q = 50};
  const PagedAttentionArgs args{.q = memory(1, 1), .out = memory(2, 1), .cu_seqlens_q = integers(3), .kv_len = integers(4)};
  for (const char* implementation : {"cuda.sm90.paged_attention", "cuda.portable.paged_attention"}) {
    SCOPED_TRACE(implementation);
    EXPECT_GT(launched(plan_paged_attention(desc, fake(kHopper), {.implementation = implementation}), args), 0U);
  }
}

}  // namespace
}  // namespace fovea::check
