// SPDX-License-Identifier: Apache-2.0
/// The host's side of calls on GPUs, over simulated devices: which calls are taken, what the others are declined with, and that a device
/// would take the launches.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "../latent_cases.hpp"
#include "expected_declines.hpp"
#include "fake_runtime.hpp"
#include "fovea/info.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

Device fake(std::size_t i) { return {Backend::cuda, static_cast<int>(i)}; }

/// Why an entry declines a call for the device's sake, or nothing: the entries of a folder are for its devices, and Turing has no bf16.
std::string_view device_decline(const AnyCase& entry, std::string_view implementation, const FakeDevice& device) {
  const bool forward = implementation == kPortableAttention || implementation == kPortablePaged;
  if (forward && device.capability < 80 && entry.name.find("/wide/f16-") != std::string::npos) return "want at most 256";
  if (implementation == kPortableAttention && device.capability < 80 && entry.name.find("/bf16-") != std::string::npos) {
    return "q.dtype: got bf16, want f16";
  }
  if ((implementation == kPortableLatent || implementation == kPortableSparse) && device.capability < 80) {
    return entry.name.find("/f16-") == std::string::npos ? "q.dtype: got bf16, want f16" : "";
  }
  if (implementation == kPortablePaged && device.capability < 80) {
    const auto named = [&](std::string_view part) { return entry.name.find(part) != std::string::npos; };
    if (named("/bf16-") && !named("/bf16-on-")) return "k_cache.dtype: got bf16, want f16";
    if (named("-mxfp") && !named("-f16")) return "want another on compute capability 7.5";
    if (named("/kv/mixed-") && !named("-f16")) return "got bf16, want f16";
    constexpr std::array kLarge{"-256x256", "-192x128", "-128x192", "-8x256", "-248x16", "-d256x128"};
    return std::any_of(kLarge.begin(), kLarge.end(), named) ? "want at most 128" : "";
  }
  if (implementation == kSm100Attention && device.capability != 100) return "device (compute capability): got ";
  const bool declined =
      implementation.starts_with("cuda.sm90.") ? device.capability != 90 : implementation == kPortableBackward && device.capability < 80;
  return declined ? "device (compute capability): got " : "";
}

/// Calls f(entry, trial, implementation) for every case and every CUDA implementation of its operation.
template <class F>
void for_each_call(F&& f) {
  for (const AnyCase& entry : all_cases()) {
    if (entry.tier == Tier::bench) continue;
    const auto trial = entry.bind();
    for (const ImplementationInfo& info : implementations()) {
      if (info.operation == entry.operation && info.backend == Backend::cuda && info.available) f(entry, *trial, info.name);
    }
  }
}

Result<AnyPlan> plan(const Trial& trial, std::string_view implementation, Device device) {
  return trial.plan({.implementation = implementation}, {.device = device});
}

/// Memory of a simulated device, at an address that the host cannot follow.
Workspace workspace_of(std::size_t bytes) { return {bytes == 0 ? nullptr : reinterpret_cast<void*>(kWorkspaceAlignment), bytes}; }

std::string why_not(const Error& error) { return error.declines.empty() ? to_string(error) : std::string(error.declines.at(0).reason); }

TEST(Planning, TakesTheTableOrDeclinesItAsExpected) {
  int taken = 0;
  for_each_call([&](const AnyCase& entry, const Trial& trial, std::string_view implementation) {
    for (std::size_t i = 0; i < kFakeDevices.size(); ++i) {
      SCOPED_TRACE(entry.name + " " + std::string(implementation) + " " + kFakeDevices[i].name);
      // Options that an implementation does not handle are the reason before the device is.
      const std::string_view of_device = device_decline(entry, implementation, kFakeDevices[i]),
                             of_case = expected_decline(entry, implementation);
      const auto planned = plan(trial, implementation, fake(i));
      ASSERT_EQ(planned.has_value(), of_device.empty() && of_case.empty()) << (planned ? "planned" : why_not(planned.error()));
      if (!planned) {
        const std::string reason = why_not(planned.error());
        const auto says = [&](std::string_view what) { return !what.empty() && reason.find(what) != std::string::npos; };
        EXPECT_TRUE(says(of_device) || says(of_case)) << reason;
        continue;
      }
      ++taken;
      launches().clear();
      const Result<void> ran = planned->run(workspace_of(planned->workspace_bytes));
      EXPECT_TRUE(ran) << to_string(ran.error());
      for (const Launch& launch : launches()) EXPECT_EQ(launch.device, static_cast<int>(i));
    }
  });
  EXPECT_GT(taken, 500);
}

TEST(Planning, LaunchesNothingWhereNothingIsToDo) {
  const auto launched = [](std::string_view name, std::string_view implementation) {
    const auto trial = find_any_case(name)->bind();
    const auto planned = plan(*trial, implementation, fake(0));
    launches().clear();
    EXPECT_TRUE(planned->run(workspace_of(planned->workspace_bytes)));
    return launches().size();
  };
  EXPECT_EQ(launched("latent_attention/empty/bf16-no-queries", "cuda.sm90.latent_attention"), 0U);
  EXPECT_EQ(launched("sparse_latent_attention/empty/bf16-no-queries", "cuda.sm90.sparse_latent_attention"), 0U);
  EXPECT_GT(launched("latent_attention/decode/bf16-h16", "cuda.sm90.latent_attention"), 0U);
  EXPECT_EQ(launched("latent_attention/empty/bf16-no-queries", kPortableLatent), 0U);
  EXPECT_EQ(launched("sparse_latent_attention/empty/bf16-no-queries", kPortableSparse), 0U);
}

TEST(Planning, HopperAttentionDeclinesByName) {
  const auto why = [](std::int64_t dim, double softcap) {
    TensorDesc q = contiguous(DType::bf16, {2, 5, 8, dim}), k = contiguous(DType::bf16, {2, 70, 2, dim});
    q.alignment = k.alignment = 16;
    const AttentionDesc desc{.q = q, .k = k, .v = k, .out = q, .softcap = softcap};
    const auto planned = plan_attention(desc, fake(0), {.implementation = "cuda.sm90.attention"});
    return planned ? std::string("planned") : why_not(planned.error());
  };
  EXPECT_EQ(why(128, 0), "planned");
  EXPECT_EQ(why(256, 1024), "planned");
  EXPECT_EQ(why(512, 0), "planned");
  EXPECT_EQ(why(128, 2000), "softcap: got 2000, want at most 1024");
}

/// Which kernel takes a call over pages, of 32 query heads and 8 of the cache.
TEST(Planning, HopperTakesPagesWhereQueryTilesAreFull) {
  constexpr std::string_view kHopper = "cuda.sm90.paged_attention";
  const auto chosen = [](std::int64_t batch, std::int64_t rows, std::int64_t page, PlanOptions options = {}) {
    TensorDesc q = contiguous(DType::bf16, {batch * rows, 32, 128}), cache = contiguous(DType::bf16, {1000, page, 8, 128});
    q.alignment = cache.alignment = 16;
    const TensorDesc table = contiguous(DType::i32, {batch, 100});
    const PagedAttentionDesc desc{.q = q, .k_cache = cache, .v_cache = cache, .block_table = table, .out = q, .max_seq_q = rows};
    const auto planned = plan_paged_attention(desc, fake(0), options);
    return planned ? std::string(planned->implementation()) : why_not(planned.error());
  };
  EXPECT_EQ(chosen(1, 4096, 16), kHopper);
  EXPECT_EQ(chosen(1, 4096, 24), kHopper);
  EXPECT_EQ(chosen(8, 64, 16), kHopper);
  EXPECT_EQ(chosen(8, 1, 16), kPortablePaged);     // decode
  EXPECT_EQ(chosen(128, 15, 16), kPortablePaged);  // 60 rows of a kv head
  EXPECT_EQ(chosen(128, 16, 16), kHopper);
  EXPECT_EQ(chosen(1, 128, 16), kPortablePaged);  // 32 work tiles
  EXPECT_EQ(chosen(1, 4096, 12), kPortablePaged);
  EXPECT_EQ(chosen(1, 4096, 16, {.batch_invariant = true}), kPortablePaged);
  EXPECT_EQ(chosen(8, 1, 16, {.implementation = kHopper}), kHopper);
}

/// Prefills beside decodes, of 32 query heads and 8 of the cache. Sequences of five tokens and more have many rows; beside one prefill and
/// decodes, those of three.
TEST(Planning, HopperTakesMixedPagesByTwoKernels) {
  constexpr std::string_view kMixed = "cuda.sm90.paged_attention_mixed", kHopper = "cuda.sm90.paged_attention";
  const auto planned = [](std::int64_t batch, std::int64_t rows, std::int64_t most, PlanOptions options = {}) {
    TensorDesc q = contiguous(DType::bf16, {rows, 32, 128}), cache = contiguous(DType::bf16, {1000, 16, 8, 128});
    q.alignment = cache.alignment = 16;
    const TensorDesc table = contiguous(DType::i32, {batch, 100});
    const PagedAttentionDesc desc{.q = q, .k_cache = cache, .v_cache = cache, .block_table = table, .out = q, .max_seq_q = most};
    return plan_paged_attention(desc, fake(0), options).value();
  };
  const auto chosen = [&](auto... arguments) { return planned(arguments...).implementation(); };
  EXPECT_EQ(chosen(32, 31 + 2048, 2048), kMixed);
  EXPECT_EQ(chosen(32, 31 + 2048, 0), kMixed);
  EXPECT_EQ(chosen(2, 4 + 100, 100), kMixed);
  EXPECT_EQ(chosen(2, 5 + 100, 100), kHopper);       // both have five tokens or more
  EXPECT_EQ(chosen(32, 4 * 32, 4), kPortablePaged);  // none has
  EXPECT_EQ(chosen(1, 2048, 0), kHopper);
  EXPECT_NE(planned(32, 31 + 2048, 0).explain().find("cuda.portable.paged_attention: 16 x 64"), std::string::npos);
  EXPECT_EQ(chosen(32, 31 + 2048, 2048, PlanOptions{.batch_invariant = true}), kPortablePaged);
  const std::string text = planned(32, 31 + 2048, 2048).explain();
  for (const std::string_view part :
       {"of 3 query tokens or more by cuda.sm90.paged_attention: 128 x 128", "cuda.portable.paged_attention: 8 x 64"})
    EXPECT_NE(text.find(part), std::string::npos) << text;
}

/// Tiles follow the shared memory of a device, and nothing else of the call changes with it.
TEST(Planning, PortableAttentionFitsTheDevice) {
  const auto tiles = [](std::size_t device, DType dtype, std::int64_t dim) {
    const TensorDesc q = contiguous(dtype, {2, 5000, 8, dim}), k = contiguous(dtype, {2, 5000, 2, dim});
    const AttentionDesc desc{.q = q, .k = k, .v = k, .out = q};
    const auto planned = plan_attention(desc, fake(device), {.implementation = "cuda.portable.attention"});
    if (!planned) return why_not(planned.error());
    const std::string text = planned->explain();
    const std::size_t begin = text.find(" x ") - 3, end = text.find(" tiles");
    return text.substr(text.find_first_not_of(' ', begin), end - text.find_first_not_of(' ', begin));
  };
  constexpr std::size_t kHopper = 0, kAmpere = 1, kTuring = 2, kAda = 4;
  EXPECT_EQ(tiles(kHopper, DType::bf16, 128), "128 x 64");
  EXPECT_EQ(tiles(kAmpere, DType::bf16, 128), "128 x 64");
  EXPECT_EQ(tiles(kAda, DType::bf16, 128), "128 x 32");
  EXPECT_EQ(tiles(kTuring, DType::f16, 128), "128 x 32");
  EXPECT_EQ(tiles(kAmpere, DType::bf16, 256), "128 x 64");
  EXPECT_EQ(tiles(kAda, DType::bf16, 256), "64 x 16");
  EXPECT_EQ(tiles(kTuring, DType::bf16, 128), "q.dtype: got bf16, want f16, on compute capability 7.5");
}

/// Code for devices whose warps have them, whether they are here or described.
TEST(Planning, PortableProductsOfE4m3FollowTheDevice) {
  const auto products = [](std::string_view name, Device device) {
    const auto planned = plan(*find_any_case(name)->bind(), "cuda.portable.quantized_attention", device);
    return planned ? products_of(*planned) : throw std::runtime_error(why_not(planned.error()));
  };
  for (std::size_t i = 0; i < kFakeDevices.size(); ++i) {
    const auto of_ada = kFakeDevices[i].capability == 89 ? E4m3Products::native : E4m3Products::widened;
    EXPECT_EQ(products("quantized_attention/ragged/warp16-e4m3", fake(i)), of_ada) << kFakeDevices[i].name;
    EXPECT_EQ(products("quantized_attention/ragged/warp16-f16", fake(i)), E4m3Products::widened) << kFakeDevices[i].name;
  }
  for (const int capability : {75, 80, 86, 89, 90, 100, 120}) {
    const auto here = capability == 89 || capability == 120 ? E4m3Products::native : E4m3Products::widened;
    EXPECT_EQ(products("quantized_attention/ragged/warp16-e4m3", {Backend::cuda, 0, capability}), here) << capability;
  }
}

/// V is transposed in shared memory. A ragged batch has its tickets alone.
TEST(Planning, HopperE4m3AttentionKeepsNoCopyOfValues) {
  const auto workspace = [](bool ragged) {
    const auto shape = [&](std::int64_t rows, std::int64_t heads, DType dtype) {
      TensorDesc desc = ragged ? contiguous(dtype, {3 * rows, heads, 64}) : contiguous(dtype, {3, rows, heads, 64});
      desc.alignment = 16;
      return desc;
    };
    AttentionDesc desc{.q = shape(3, 4, DType::e4m3), .k = shape(4096, 2, DType::e4m3), .v = shape(4096, 2, DType::e4m3)};
    desc.out = shape(3, 4, DType::bf16);
    if (ragged) desc.ragged = RaggedDesc{.batch = 3, .max_seq_q = 3, .max_seq_k = 4096};
    const auto planned = plan_attention(desc, fake(0), {.implementation = "cuda.sm90.attention_e4m3", .batch_invariant = true});
    EXPECT_TRUE(planned) << to_string(planned.error());
    return planned ? planned->workspace_bytes() : 0;
  };
  EXPECT_EQ(workspace(false), 0U);
  EXPECT_LE(workspace(true), 64U);
}

/// The quantisers write e4m3 values as Hopper's attention reads them: no launch transposes V, and no copy of it lies by rows.
TEST(Planning, HopperQuantisesE4m3ValuesIntoTiles) {
  const auto planned = [](std::int64_t keys, std::size_t device) {
    TensorDesc q = contiguous(DType::f16, {2, 1024, 4, 128}), k = contiguous(DType::f16, {2, keys, 4, 128});
    q.alignment = k.alignment = 16;
    return plan_quantize_and_attend({.q = q, .k = k, .v = k, .out = q, .v_dtype = DType::e4m3}, fake(device));
  };
  const auto launched = [&](std::int64_t keys) {
    const auto plan = planned(keys, 0);
    if (!plan) return std::size_t{0};
    const auto tensor = [](std::uintptr_t i) { return reinterpret_cast<std::byte*>(i << 32); };  // which nothing reads
    launches().clear();
    EXPECT_TRUE(plan->run({.q = tensor(1), .k = tensor(2), .v = tensor(3), .out = tensor(4)}, workspace_of(plan->workspace_bytes())));
    return launches().size();
  };
  EXPECT_NE(planned(1024, 0)->explain().find("v into key tiles; cuda.sm90"), std::string::npos);
  EXPECT_EQ(planned(1024, 1)->explain().find("key tiles"), std::string::npos);  // Ampere
  EXPECT_EQ(launched(1024), 3U);                                                // counters are cleared, all is quantised, attention
  EXPECT_EQ(launched(0), 3U);
  constexpr std::size_t kTensor = 2 * 1024 * 4 * 128;  // bytes of q, k or v in 8 bits
  EXPECT_LT(planned(1024, 0)->workspace_bytes(), 4 * kTensor);
  EXPECT_EQ(planned(1024, 0)->workspace_bytes() - planned(1023, 0)->workspace_bytes(), 2 * 4 * 128U);  // of int8 keys
}

/// Tiles of the gradient follow the shared memory of a device.
TEST(Planning, PortableGradientFitsTheDevice) {
  const auto tiles = [](std::size_t device, std::int64_t dim, bool deterministic) {
    const TensorDesc q = contiguous(DType::bf16, {2, 500, 8, dim}), k = contiguous(DType::bf16, {2, 500, 2, dim});
    const TensorDesc lse = contiguous(DType::f32, {2, 8, 500});
    const AttentionBackwardDesc desc{.forward = {.q = q, .k = k, .v = k, .out = q, .lse = lse}, .dout = q, .dq = q, .dk = k, .dv = k};
    const PlanOptions options{.implementation = kPortableBackward, .deterministic = deterministic};
    const auto planned = plan_attention_backward(desc, fake(device), options);
    if (!planned) return why_not(planned.error());
    const std::string text = planned->explain();
    const std::size_t begin = text.find("dq"), end = text.find(", for head dims");
    return text.substr(begin, end - begin);
  };
  constexpr std::size_t kHopper = 0, kAmpere = 1, kTuring = 2, kAda = 4;
  EXPECT_EQ(tiles(kHopper, 256, true), "dq by 64 queries x 32 keys, dk and dv by 64 keys x 32 queries");
  EXPECT_EQ(tiles(kHopper, 128, true), "dq by 128 queries x 32 keys, dk and dv by 64 keys x 64 queries");
  EXPECT_EQ(tiles(kAmpere, 128, true), "dq by 64 queries x 64 keys, dk and dv by 64 keys x 32 queries");
  EXPECT_EQ(tiles(kAda, 128, true), "dq by 64 queries x 32 keys, dk and dv by 64 keys x 32 queries");
  EXPECT_EQ(tiles(kHopper, 256, false), tiles(kHopper, 256, true));
  EXPECT_EQ(tiles(kHopper, 128, false), "dq, dk and dv by 128 keys x 64 queries");
  EXPECT_EQ(tiles(kAmpere, 64, false), "dq, dk and dv by 128 keys x 128 queries");
  EXPECT_EQ(tiles(kAda, 64, false), "dq, dk and dv by 128 keys x 64 queries");
  EXPECT_EQ(tiles(kAda, 128, false), tiles(kAda, 128, true));
  EXPECT_EQ(tiles(kTuring, 128, true), "device (compute capability): got 7.5, want 8.0 or later");
}

/// Empty sequences of a ragged batch cost at most a CTA each: the grid follows the rows of q, not the bound of a length.
TEST(Planning, RaggedAttentionLaunchesNoMoreThanThereMayBe) {
  const TensorDesc q = contiguous(DType::bf16, {4096, 4, 128}), k = contiguous(DType::bf16, {4096, 4, 128});
  const AttentionDesc desc{.q = q, .k = k, .v = k, .out = q, .ragged = RaggedDesc{.batch = 64, .max_seq_q = 4096, .max_seq_k = 4096}};
  const auto planned = plan_attention(desc, fake(0), {.implementation = "cuda.portable.attention"});
  ASSERT_TRUE(planned);
  const auto tensor = [](std::uintptr_t i) { return reinterpret_cast<std::byte*>(i << 32); };  // which nothing reads
  std::int32_t lengths[65] = {};
  launches().clear();
  const AttentionArgs args{
      .q = tensor(1), .k = tensor(2), .v = tensor(3), .out = tensor(4), .cu_seqlens_q = lengths, .cu_seqlens_k = lengths};
  const Result<void> ran = planned->run(args);
  ASSERT_TRUE(ran) << to_string(ran.error());
  ASSERT_EQ(launches().size(), 1U);
  EXPECT_EQ(launches()[0].grid.x, (4096 / 128 + 64) * 4U);
}

TEST(Planning, SaysWhatALaunchSaid) {
  set_launch_status(cudaErrorLaunchOutOfResources);
  const auto trial = find_any_case("latent_attention/decode/bf16-h16")->bind();
  const auto planned = plan(*trial, "cuda.sm90.latent_attention", fake(0));
  ASSERT_TRUE(planned);
  const Result<void> ran = planned->run(workspace_of(planned->workspace_bytes));
  set_launch_status(cudaSuccess);
  ASSERT_FALSE(ran);
  EXPECT_EQ(ran.error().code, ErrorCode::device_error);
  EXPECT_NE(ran.error().message.find("kernel launch: cudaErrorLaunchOutOfResources"), std::string::npos) << ran.error().message;
}

LatentAttentionDesc latent(const TensorDesc& cache, std::int64_t batch, std::int64_t seq_q, std::int64_t table_columns,
                           std::int64_t heads = 16) {
  TensorDesc q = contiguous(DType::bf16, {batch, seq_q, heads, 576}), out = contiguous(DType::bf16, {batch, seq_q, heads, 512});
  q.alignment = out.alignment = 16;
  return {.q = q,
          .out = out,
          .block_table = contiguous(DType::i32, {batch, table_columns}),
          .cache = {.rows = cache},
          .has_scale = cache.dtype == DType::e4m3};
}

TensorDesc latent_rows(DType dtype, std::int64_t blocks, std::int64_t kv_heads = 1) {
  TensorDesc rows = contiguous(dtype, {blocks, 64, kv_heads, 576});
  rows.alignment = 16;
  return rows;
}

/// "planned", or the reason of Hopper's kernel to decline.
std::string outcome(const LatentAttentionDesc& desc) {
  const auto planned = plan_latent_attention(desc, fake(0), {.implementation = "cuda.sm90.latent_attention"});
  return planned ? "planned" : why_not(planned.error());
}

/// Token addresses are kept in 32 bits, in units that divide the strides, whichever of block and token stride is longer.
TEST(PlanningLatent, DeclinesACacheBeyondItsPlaces) {
  const auto with_blocks = [](std::int64_t blocks, std::int64_t gap) {
    TensorDesc rows = latent_rows(DType::e4m3, blocks);
    rows.strides[0] = 576;
    rows.strides[1] = blocks * 576 + gap;
    return outcome(latent(rows, 1, 1, 4));
  };
  EXPECT_EQ(with_blocks(1 << 20, 0), "planned");
  EXPECT_EQ(with_blocks(1 << 21, 0), "planned");
  EXPECT_EQ(with_blocks(1 << 20, 16), "planned");
  EXPECT_EQ(with_blocks(1 << 21, 16),
            "cache (units of 16 bytes, which divide the strides of all blocks and tokens): got 2^32 or more, want fewer: a block stride "
            "that is a multiple of more bytes, such as those of a token");
}

/// A pool that layers share: the blocks of one layer lie far apart.
TEST(PlanningLatent, TakesPoolsOfManyLayers) {
  LatentAttentionDesc desc = latent(latent_rows(DType::bf16, 4), 1, 1, 4);
  desc.cache = {
      .format = CacheFormat::v32_fp8, .blocks = 1 << 16, .page = 64, .block_stride = std::int64_t{61} * 64 * 656, .alignment = 16};
  EXPECT_EQ(outcome(desc), "planned");
  desc.cache.block_stride += 16;
  EXPECT_NE(outcome(desc), "planned");
}

/// Keys that TMA cannot reach are loaded row by row.
TEST(PlanningLatent, TakesStridesBeyondTheCopyEngine) {
  TensorDesc rows = latent_rows(DType::bf16, 4);
  rows.strides[0] = std::int64_t{576} << 30;
  EXPECT_EQ(outcome(latent(rows, 1, 1, 4)), "planned");
  LatentAttentionDesc desc = latent(latent_rows(DType::bf16, 4), 2, 1, 4);
  desc.q.strides[0] = std::int64_t{1} << 39;
  EXPECT_EQ(outcome(desc), "planned");
}

TEST(PlanningLatent, DeclinesMoreKvHeadsThanAGridHas) {
  EXPECT_EQ(outcome(latent(latent_rows(DType::bf16, 4, 65536), 1, 1, 4, 65536)), "kv_heads: got 65536, want 65535 or fewer");
  EXPECT_EQ(outcome(latent(latent_rows(DType::bf16, 4, 65535), 1, 1, 4, 65535)), "planned");
}

/// Keys of a sequence are counted in 32 bits, whatever a block table has room for.
TEST(PlanningLatent, DeclinesMoreKeysThanItCounts) {
  LatentAttentionDesc desc = latent(latent_rows(DType::bf16, 4), 1, 1, 1 << 24);
  EXPECT_EQ(outcome(desc), "keys of a sequence: got 1073741824, want less than 2^30");
  desc.max_kv_len = 4096;
  EXPECT_EQ(outcome(desc), "planned");
}

/// From 0 to more than an int can count.
TEST(PlanningLatent, CountsRowTiles) {
  EXPECT_EQ(outcome(latent(latent_rows(DType::bf16, 4), 2, 0, 4)), "planned");
  LatentAttentionDesc ragged = latent(latent_rows(DType::bf16, 4), 2, 0, 4);
  ragged.q = contiguous(DType::bf16, {0, 16, 576}), ragged.out = contiguous(DType::bf16, {0, 16, 512});
  ragged.q.alignment = ragged.out.alignment = 16;
  EXPECT_EQ(outcome(ragged), "planned");
  EXPECT_EQ(outcome(latent(latent_rows(DType::bf16, 4, 4096), 1, 1 << 26, 4, 4096)), "planned");
}

}  // namespace
}  // namespace fovea::check
