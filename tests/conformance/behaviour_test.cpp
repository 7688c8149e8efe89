// SPDX-License-Identifier: Apache-2.0
/// Promises beyond a single right result: the same bits again, under any thread pool, prepared or not, whatever else is in the batch.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>

#include "bound_case.hpp"
#include "fovea/device.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

constexpr const char* kCases[] = {"attention/ragged/bf16-mixed",
                                  "attention_backward/ragged/bf16-padded-sink",
                                  "attention_backward/gqa/f32-6on2",
                                  "attention_backward/blocks/bf16-6on2-softcap-sink",
                                  "attention/ragged/f32-window",
                                  "attention/gqa/f16-9on3",
                                  "paged_attention/mixed/bf16-page16",
                                  "paged_attention/one-long/f32-page16",
                                  "paged_attention/split/bf16-speculative",
                                  "paged_attention/mixed/bf16-on-e4m3-page3",
                                  "paged_cache_append/page/bf16-on-e4m3-page16",
                                  "merge_states/empty/bf16-some-of-8",
                                  "latent_attention/split/bf16-h16",
                                  "latent_attention/packed/v41_fp8",
                                  "sparse_latent_attention/split/v32_fp8-extra",
                                  "sparse_latent_attention/flat/bf16-lengths",
                                  "quantize_latent_cache/format/v4_fp8-bf16-power-of-two",
                                  "dequantize_latent_cache/format/v41_fp4-f16",
                                  "index_logits/ranges/odd",
                                  "topk_rows/places/page64-offset-sorted",
                                  "quantize_qk_int8/ragged/block",
                                  "quantize_v/ragged/block-e4m3",
                                  "quantized_attention/ragged/warp16-e4m3",
                                  "quantize_and_attend/ragged/thread32-f16"};

using Bits = std::vector<std::vector<std::byte>>;

Bits bits_of(const Trial& trial) {
  Bits bits;
  for (const Named& named : trial.outputs()) {
    const Storage& storage = named.tensor.storage();
    bits.emplace_back(storage.data(), storage.data() + storage.bytes());
  }
  return bits;
}

/// The bits that one call leaves in poisoned outputs.
template <class Call>
Bits bits_after(const Trial& trial, Call&& call) {
  trial.reset_outputs();
  const Result<void> ran = call();
  EXPECT_TRUE(ran) << ran.error().message;
  return bits_of(trial);
}

/// Calls f(trial, plan) for every case and every available implementation that takes it.
template <class F>
void for_each_plan(F&& f) {
  for (const char* name : kCases) {
    const AnyCase* entry = find_any_case(name);
    ASSERT_NE(entry, nullptr) << name;
    const auto trial = entry->bind();
    for (const ImplementationInfo& info : implementations()) {
      if (info.operation != entry->operation || !info.available) continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(info.name));
      const auto planned = trial->plan({.implementation = info.name, .deterministic = true});
      if (planned) f(*trial, *planned);
    }
  }
}

/// Makes threads share work however little it is, and restores the library's own threads at the end of a test.
struct DefaultThreads {
  DefaultThreads() { share_small_work(true); }
  ~DefaultThreads() {
    share_small_work(false);
    set_num_threads(0);
    set_parallel_for(nullptr);
  }
};

TEST(Behaviour, SameBitsFromRunToRun) {
  for_each_plan([](const Trial& trial, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes), other(planned.workspace_bytes);
    const Bits first = bits_after(trial, [&] { return planned.run(workspace.view()); });
    EXPECT_EQ(bits_after(trial, [&] { return planned.run(workspace.view()); }), first) << "with the workspace as the first run left it";
    EXPECT_EQ(bits_after(trial, [&] { return planned.run(other.view()); }), first) << "with a fresh workspace";
  });
}

TEST(Behaviour, PreparedRunsEqualRun) {
  for_each_plan([](const Trial& trial, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes), other(planned.workspace_bytes);
    const Bits whole = bits_after(trial, [&] { return planned.run(workspace.view()); });
    trial.reset_outputs();
    ASSERT_TRUE(planned.prepare(other.view()));
    EXPECT_EQ(trial.what_changed(), "") << "prepare() wrote outputs";
    EXPECT_EQ(bits_after(trial, [&] { return planned.run_prepared(other.view()); }), whole);
    EXPECT_EQ(bits_after(trial, [&] { return planned.run_prepared(other.view()); }), whole) << "the second layer of a step";
    EXPECT_TRUE(other.red_zones_intact());
  });
}

/// One query and two keys by the formula: neither the default scale of 72 channels nor the given ones are f32 numbers.
TEST(Behaviour, DoublePrecisionScaleAndSoftcap) {
  constexpr std::int64_t kDim = 72;
  std::array<double, kDim> q{}, out{};
  std::array<double, 2 * kDim> kv{};
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(1.0 + static_cast<double>(i));
  for (std::size_t i = 0; i < kv.size(); ++i) kv[i] = 2 * std::cos(3.0 + 7.0 * static_cast<double>(i));
  const double first = std::inner_product(q.begin(), q.end(), kv.begin(), 0.0),
               second = std::inner_product(q.begin(), q.end(), kv.begin() + kDim, 0.0);
  for (const auto& [scale, softcap] : {std::pair{0.0, 0.0}, {0.1, 0.0}, {0.7, 1.3}}) {
    const TensorDesc rows = contiguous(DType::f64, {1, 1, 1, kDim}), keys = contiguous(DType::f64, {1, 2, 1, kDim});
    const auto planned = plan_attention({.q = rows, .k = keys, .v = keys, .out = rows, .scale = scale, .softcap = softcap});
    ASSERT_TRUE(planned);
    ASSERT_TRUE(planned->run({.q = q.data(), .k = kv.data(), .v = kv.data(), .out = out.data()}, {}));
    const auto score = [&, scale = scale, softcap = softcap](double product) {
      const double s = product * (scale != 0 ? scale : 1 / std::sqrt(72.0));
      return softcap > 0 ? softcap * std::tanh(s / softcap) : s;
    };
    const double weight = 1 / (1 + std::exp(score(second) - score(first)));
    for (std::size_t d = 0; d < q.size(); ++d) EXPECT_NEAR(out[d], weight * kv[d] + (1 - weight) * kv[d + kDim], 2e-15);
  }
}

TEST(Behaviour, RightUnderAnyThreadCount) {
  const DefaultThreads restore;
  for (const char* name : kCases) {
    const AnyCase& entry = *find_any_case(name);
    const auto trial = entry.bind();
    for (const int threads : {1, 2, 3, 7}) {
      set_num_threads(threads);
      EXPECT_EQ(num_threads(), threads);
      for (const ImplementationInfo& info : implementations()) {
        if (info.operation != entry.operation || !info.available) continue;
        const Report report = run_case(*trial, info.name);
        EXPECT_NE(report.status, Status::failed) << name << " " << info.name << " with " << threads << " threads: " << report.message;
      }
    }
  }
}

std::atomic<int> calls_of_own_pool{0};

/// A pool of one thread that starts with the last piece.
void backwards(int threads, void (*body)(void*, int), void* context) {
  ++calls_of_own_pool;
  for (int thread = threads - 1; thread >= 0; --thread) body(context, thread);
}

/// A new thread for each piece.
void all_at_once(int threads, void (*body)(void*, int), void* context) {
  ++calls_of_own_pool;
  std::vector<std::jthread> pool;
  for (int thread = 0; thread < threads; ++thread) pool.emplace_back(body, context, thread);
}

TEST(Behaviour, SameBitsUnderAReplacedThreadPool) {
  const DefaultThreads restore;
  set_num_threads(5);
  for_each_plan([](const Trial& trial, const AnyPlan& planned) {
    const HostileWorkspace workspace(planned.workspace_bytes);
    set_parallel_for(nullptr);
    const Bits usual = bits_after(trial, [&] { return planned.run(workspace.view()); });
    for (const ParallelFor pool : {backwards, all_at_once}) {
      set_parallel_for(pool);
      calls_of_own_pool = 0;
      EXPECT_EQ(bits_after(trial, [&] { return planned.run(workspace.view()); }), usual);
      const bool parallel = planned.implementation.starts_with("cpu.") && planned.implementation.ends_with("attention");
      EXPECT_TRUE(calls_of_own_pool > 0 || !parallel);
    }
  });
}

TEST(Behaviour, OnePlanInManyThreadsAtOnce) {
  const Case& spec = *find_case("paged_attention/mixed/bf16-page16");
  const std::unique_ptr<BoundCase> bounds[] = {bind(spec), bind(spec), bind(spec)};
  const auto request = [](BoundCase & bound) -> auto& { return std::get<Request<PagedAttentionDesc, PagedAttentionArgs>>(bound.request); };
  for (const ImplementationInfo& info : implementations()) {
    if (info.operation != "paged_attention" || !info.available) continue;
    const auto planned = plan_paged_attention(request(*bounds[0]).desc, {}, {.implementation = info.name});
    if (!planned) continue;
    {
      std::vector<std::jthread> callers;
      for (const auto& bound : bounds)
        callers.emplace_back([&] {
          const HostileWorkspace workspace(planned->workspace_bytes());
          EXPECT_TRUE(planned->run(request(*bound).args, workspace.view()));
        });
    }
    for (const auto& bound : bounds) EXPECT_EQ(bound->judge().message, "") << info.name;
  }
}

/// Sequence `b` of a paged case, as a call of its own that writes where the whole call would write it.
Request<PagedAttentionDesc, PagedAttentionArgs> alone(const BoundCase& bound, std::int64_t b, const std::int32_t* cu_seqlens_q) {
  auto request = std::get<Request<PagedAttentionDesc, PagedAttentionArgs>>(bound.request);
  const Sequence sequence = bound.spec.sequences[static_cast<std::size_t>(b)];
  const std::int64_t row = bound.flat_row(b, 0);
  request.desc.q.shape[0] = request.desc.out.shape[0] = request.desc.lse->shape[0] = sequence.q;
  request.desc.block_table.shape[0] = 1;
  request.desc.max_seq_q = sequence.q;
  request.desc.max_kv_len = sequence.kv;
  const auto element = static_cast<std::int64_t>(size_of(bound.spec.dtype));
  request.args.q = bound.q.as<char>() + bound.row_offset(bound.q, row, 0) * element;
  request.args.out = bound.out.as<char>() + bound.row_offset(bound.out, row, 0) * element;
  request.args.lse = bound.lse.as<float>() + bound.lse_offset(row, 0);
  request.args.block_table += bound.block_table.offset(b);
  request.args.kv_len += b;
  request.args.cu_seqlens_q = cu_seqlens_q;
  return request;
}

TEST(Behaviour, BatchInvariantRowsDoNotDependOnTheBatch) {
  for (const char* name : {"paged_attention/mixed/bf16-page16", "paged_attention/one-long/bf16-page16",
                           "paged_attention/one-long/f32-page3", "paged_attention/one-long/bf16-on-e4m3-page16"}) {
    const auto bound = bind(*find_case(name));
    for (const ImplementationInfo& info : implementations()) {
      if (info.operation != "paged_attention" || !info.available) continue;
      SCOPED_TRACE(std::string(name) + " " + std::string(info.name));
      const PlanOptions options{.implementation = info.name, .batch_invariant = true};
      const auto together = plan(bound->request, options);
      if (!together) continue;
      const HostileWorkspace workspace(together->workspace_bytes);
      const Bits whole = bits_after(*bound, [&] { return together->run(workspace.view()); });
      bound->reset_outputs();
      for (std::int64_t b = 0; b < static_cast<std::int64_t>(bound->spec.sequences.size()); ++b) {
        const std::int32_t cu_seqlens_q[] = {0, static_cast<std::int32_t>(bound->spec.sequences[static_cast<std::size_t>(b)].q)};
        if (cu_seqlens_q[1] == 0) continue;
        const AnyRequest one = alone(*bound, b, cu_seqlens_q);
        const auto planned = plan(one, options);
        ASSERT_TRUE(planned) << to_string(planned.error());
        const HostileWorkspace scratch(planned->workspace_bytes);
        ASSERT_TRUE(planned->run(scratch.view()));
      }
      EXPECT_EQ(bits_of(*bound), whole);
    }
  }
}

/// The last row of a long sequence is split over keys in a call of its own. Among forty rows it is not.
TEST(Behaviour, SplitResultsEqualUnsplitOnes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t last = 39;
    const auto together = bind({.name = "split and not",
                                .operation = Operation::paged_attention,
                                .dtype = dtype,
                                .kv_dtype = dtype,
                                .out_dtype = dtype,
                                .sequences = {{last + 1, 3000}},
                                .mask = causal()});
    const double tolerance = together->answers().front().tolerance().absolute;
    auto lone = std::get<Request<PagedAttentionDesc, PagedAttentionArgs>>(together->request);
    lone.desc.q.shape[0] = lone.desc.out.shape[0] = lone.desc.lse->shape[0] = lone.desc.max_seq_q = 1;
    const HostileTensor out(lone.desc.out), lse(*lone.desc.lse);
    const std::int32_t cu_seqlens_q[] = {0, 1};
    lone.args.q = together->q.as<char>() + together->row_offset(together->q, last, 0) * static_cast<std::int64_t>(size_of(dtype));
    lone.args.out = out.data();
    lone.args.lse = lse.as<float>();
    lone.args.cu_seqlens_q = cu_seqlens_q;
    const AnyRequest request = lone;
    for (const ImplementationInfo& info : implementations()) {
      if (info.operation != "paged_attention" || !info.available) continue;
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(info.name));
      const auto unsplit = together->plan({.implementation = info.name}), split = plan(request, {.implementation = info.name});
      if (!unsplit || !split) continue;
      const HostileWorkspace one(unsplit->workspace_bytes), other(split->workspace_bytes);
      ASSERT_TRUE(unsplit->run(one.view()) && split->run(other.view()));
      for (std::int64_t head = 0; head < together->spec.head; ++head) {
        const std::int64_t row = together->row_offset(together->out, last, head);
        EXPECT_NEAR(lse.at(lse.offset(0, head)), together->lse.at(together->lse_offset(last, head)),
                    2 * kLseRelative * std::max(1.0f, std::fabs(lse.at(lse.offset(0, head)))));
        for (std::int64_t x = 0; x < together->spec.dv; ++x)
          ASSERT_NEAR(out.at(out.offset(0, head) + x), together->out.at(row + x), tolerance) << head << " " << x;
      }
    }
  }
}

/// Workspace of a case after one change to it, or 0 if it is declined.
std::size_t workspace_of(Case spec, std::string_view implementation) {
  const AnyRequest request = describe(spec);
  const auto planned = plan(request, {.implementation = implementation});
  return planned ? planned->workspace_bytes : 0;
}

TEST(Behaviour, WorkspaceGrowsWithEveryBound) {
  const std::int64_t sizes[] = {0, 1, 2, 15, 16, 17, 64, 100, 255, 256, 500, 1000, 4096, 4097, 20000, 100000};
  for (const ImplementationInfo& info : implementations()) {
    if (!info.available || info.operation == "merge_states" || info.operation == "paged_cache_append") continue;
    SCOPED_TRACE(info.name);
    const Operation operation = info.operation == "attention" ? Operation::attention : Operation::paged_attention;
    const Case base{.operation = operation, .sequences = {{7, 300}, {1, 40}}, .ragged = true};
    for (int bound = 0; bound < 3; ++bound) {
      std::size_t before = 0;
      for (const std::int64_t size : sizes) {
        Case spec = base;
        if (bound == 0) spec.sequences[0].q = size;
        if (bound == 1) spec.sequences[0].kv = size;
        if (bound == 2) spec.sequences.assign(static_cast<std::size_t>(size % 5000), {1, 300});
        if (bound == 2 && size >= 5000) continue;
        const std::size_t bytes = workspace_of(spec, info.name);
        EXPECT_GE(bytes, before) << (bound == 0 ? "seq_q " : bound == 1 ? "kv " : "batch ") << size;
        before = bytes;
      }
    }
  }
}

TEST(Behaviour, PlansExplainThemselves) {
  for_each_plan([](const Trial&, const AnyPlan& planned) {
    EXPECT_EQ(planned.explanation.substr(0, planned.implementation.size()), planned.implementation);
    EXPECT_GT(planned.explanation.size(), planned.implementation.size() + 3) << "no tuning in: " << planned.explanation;
  });
}

}  // namespace
}  // namespace fovea::check
