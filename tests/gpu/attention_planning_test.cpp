// SPDX-License-Identifier: Apache-2.0
/// Plans of dense attention: splits, workspaces, heads that share a query tile. Kernels of latent attention by shared memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include "case.hpp"
#include "expected_declines.hpp"
#include "fake_runtime.hpp"
#include "fovea/attention.hpp"
#include "fovea/info.hpp"
#include "fovea/latent_attention.hpp"

namespace fovea::check {
namespace {

constexpr Device kHopper{Backend::cuda, 0}, kBlackwell{Backend::cuda, 3};  // of kFakeDevices

/// Bounds of a ragged batch may be larger than its lengths, and then want no less workspace.
TEST(Planning, RaggedAttentionIsNotSplit) {
  TensorDesc q = contiguous(DType::bf16, {64, 32, 128}), k = contiguous(DType::bf16, {8192, 8, 128});
  q.alignment = k.alignment = 16;
  const AttentionDesc desc{.q = q, .k = k, .v = k, .out = q, .ragged = RaggedDesc{.batch = 1, .max_seq_q = 1, .max_seq_k = 8192}};
  for (const char* implementation : {"cuda.sm90.attention", "cuda.portable.attention"}) {
    const auto planned = plan_attention(desc, kHopper, {.implementation = implementation});
    ASSERT_TRUE(planned) << implementation;
    EXPECT_LE(planned->workspace_bytes(), 64U) << implementation;  // tickets alone
  }
}

TEST(Planning, AKernelThatNoDeviceHasRunIsTakenIfAskedFor) {
  const auto built = implementations();
  const auto is_it = [](const ImplementationInfo& info) { return info.name == kSm100Attention; };
  if (std::none_of(built.begin(), built.end(), is_it)) GTEST_SKIP() << "no kernels for 100a";
  if (std::getenv("FOVEA_UNTESTED_BLACKWELL") != nullptr) GTEST_SKIP() << "the environment asks for it";
  TensorDesc q = contiguous(DType::bf16, {2, 300, 8, 128});
  q.alignment = 16;
  const AttentionDesc desc{.q = q, .k = q, .v = q, .out = q};
  const auto forced = plan_attention(desc, kBlackwell, {.implementation = kSm100Attention});
  ASSERT_FALSE(forced);
  ASSERT_FALSE(forced.error().declines.empty());
  EXPECT_EQ(forced.error().declines.at(0).reason,
            "not available on this machine: needs FOVEA_UNTESTED_BLACKWELL=1: no device has run this kernel");
  const auto taken = plan_attention(desc, kBlackwell);
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->implementation(), "cuda.portable.attention");
}

/// Long calls have taller tiles, or pairs of CTAs: by their mask, and by whether heads draw tickets.
TEST(Planning, HopperAttentionTilesByRows) {
  struct Call {
    std::int64_t rows;
    BandMask mask{};
    std::int64_t group = 1, qk = 128, v = 128;
    bool alibi = false;
  };
  const auto tiles = [](const Call& call) {
    const std::int64_t heads = 8 * call.group;
    TensorDesc q = contiguous(DType::bf16, {1, call.rows, heads, call.qk}), k = contiguous(DType::bf16, {1, call.rows, 8, call.qk}),
               v = contiguous(DType::bf16, {1, call.rows, 8, call.v}), out = contiguous(DType::bf16, {1, call.rows, heads, call.v});
    for (TensorDesc* each : {&q, &k, &v, &out}) each->alignment = 16;
    AttentionDesc desc{.q = q, .k = k, .v = v, .out = out, .mask = call.mask};
    if (call.alibi) desc.alibi_slopes = contiguous(DType::f32, {heads});
    const auto plan = plan_attention(desc, kHopper, {.implementation = "cuda.sm90.attention"});
    if (!plan) return plan.error().message;
    const std::string text(plan->explain());
    const std::size_t end = text.find(" tiles for"), begin = text.rfind(": ", end);
    const bool pair = text.find(", 2 CTAs share keys") != std::string::npos;
    return text.substr(begin + 2, end - begin - 2) + (pair ? ", pair" : "");
  };
  const BandMask window{.left = 1024, .right = 0};
  EXPECT_EQ(tiles({2047}), "128 x 128");
  EXPECT_EQ(tiles({2048}), "192 x 128");
  EXPECT_EQ(tiles({8191, window}), "128 x 128");
  EXPECT_EQ(tiles({8192, window}), "192 x 128");
  EXPECT_EQ(tiles({6143, causal()}), "128 x 128");
  EXPECT_EQ(tiles({6144, causal()}), "192 x 128");
  EXPECT_EQ(tiles({4095, causal(), 4}), "128 x 128");
  EXPECT_EQ(tiles({4096, causal(), 4}), "192 x 128");
  EXPECT_EQ(tiles({3071, {}, 1, 192}), "128 x 128");
  EXPECT_EQ(tiles({3072, {}, 1, 192}), "192 x 112, pair");
  EXPECT_EQ(tiles({2047, {}, 1, 256, 256}), "128 x 64");
  EXPECT_EQ(tiles({2048, {}, 1, 256, 256}), "128 x 64, pair");
  EXPECT_EQ(tiles({6143, causal(), 1, 192}), "128 x 128");
  EXPECT_EQ(tiles({6144, causal(), 1, 192}), "192 x 112");
  EXPECT_EQ(tiles({4095, {}, 1, 128, 128, true}), "128 x 128");
  EXPECT_EQ(tiles({4096, {}, 1, 128, 128, true}), "192 x 128");
  EXPECT_EQ(tiles({8191, causal(), 1, 128, 128, true}), "128 x 128");
  EXPECT_EQ(tiles({8192, causal(), 1, 128, 128, true}), "192 x 128");
}

/// A decline names the list that is too long.
TEST(Planning, BlockListsOfTooManyKeyTiles) {
  constexpr std::int64_t kSlots = std::int64_t{1} << 29, kBlock = 128;
  TensorDesc q = contiguous(DType::bf16, {1, 256, 2, 128});
  q.alignment = 16;
  const TensorDesc counts = contiguous(DType::i32, {1, 1, 2}), indices = contiguous(DType::i32, {1, 1, 2, kSlots});
  AttentionDesc full{.q = q, .k = q, .v = q, .out = q, .block_q = kBlock, .block_k = kBlock}, partial = full;
  full.full_block_counts = partial.partial_block_counts = counts;
  full.full_block_indices = partial.partial_block_indices = indices;
  partial.partial_block_bits = contiguous(DType::i32, {1, 1, 2, kSlots * kBlock * kBlock / 32});
  const std::pair<const AttentionDesc*, std::string> lists[] = {{&full, "full"}, {&partial, "partial"}};
  for (const auto& [desc, name] : lists)
    for (const std::string implementation : {"cuda.sm90.block_attention", "cuda.portable.attention"}) {
      const auto plan = plan_attention(*desc, kHopper, {.implementation = implementation});
      ASSERT_FALSE(plan);
      const std::string want = name + "_block_indices.shape[3] (slot): got 536870912, want key tiles below 2^29";
      EXPECT_NE(plan.error().message.find(want), std::string::npos) << plan.error().message;
    }
}

/// Calls of one wave: a warpgroup of 64 query rows begins with a token of its own, and clusters merge without a workspace.
TEST(Planning, HopperAttentionOfOneWave) {
  const auto planned = [](std::int64_t group, std::int64_t keys, std::int64_t dim) {
    TensorDesc q = contiguous(DType::bf16, {1, 1, 2 * group, dim}), k = contiguous(DType::bf16, {1, keys, 2, dim});
    q.alignment = k.alignment = 16;
    return plan_attention({.q = q, .k = k, .v = k, .out = q}, kHopper, {.implementation = "cuda.sm90.attention"});
  };
  for (const std::int64_t dim : {64, 128})
    for (const std::int64_t keys : {200, 700, 3000})
      for (const std::int64_t group : {64, 128, 256}) {
        const auto plan = planned(group, keys, dim);
        ASSERT_TRUE(plan);
        const std::string text(plan->explain());
        EXPECT_NE(text.find(", 64 heads to a query tile"), std::string::npos) << text;
        EXPECT_EQ(plan->workspace_bytes(), 0U) << text;
      }
  EXPECT_GT(planned(4, 65536, 128)->workspace_bytes(), 0U);  // in splits
}

/// A device gets those portable kernels of latent attention that fit its shared memory.
TEST(Planning, PortableLatentAttentionFits) {
  const auto tiles = [](std::size_t device, DType rows, std::int64_t heads) {
    const DType dtype = kFakeDevices[device].capability < 80 ? DType::f16 : DType::bf16;
    TensorDesc cache = contiguous(rows, {4, 64, 1, 576});
    cache.alignment = 16;
    const LatentAttentionDesc desc{.q = contiguous(dtype, {1, 1, heads, 576}),
                                   .out = contiguous(dtype, {1, 1, heads, 512}),
                                   .block_table = contiguous(DType::i32, {1, 4}),
                                   .cache = {.rows = cache}};
    const auto planned =
        plan_latent_attention(desc, {Backend::cuda, static_cast<int>(device)}, {.implementation = "cuda.portable.latent_attention"});
    const std::string text(planned ? planned->explain() : to_string(planned.error()));
    const std::size_t begin = text.find(": ") + 2;
    return text.substr(begin, text.find(" stages") - begin);
  };
  constexpr std::size_t kLarge = 0, kAmpere = 1, kTuring = 2, kAda = 4;
  EXPECT_EQ(tiles(kLarge, DType::bf16, 16), "16 x 32 tiles, 2");
  EXPECT_EQ(tiles(kLarge, DType::bf16, 17), "32 x 32 tiles, 4");
  EXPECT_EQ(tiles(kLarge, DType::bf16, 64), "64 x 64 tiles, 2");
  EXPECT_EQ(tiles(kLarge, DType::e4m3, 64), "64 x 64 tiles, 1");
  EXPECT_EQ(tiles(kLarge, DType::e4m3, 32), "32 x 32 tiles, 4");
  EXPECT_EQ(tiles(kAmpere, DType::bf16, 128), "64 x 32 tiles, 4");
  EXPECT_EQ(tiles(kAmpere, DType::e4m3, 128), "64 x 32 tiles, 4");
  EXPECT_EQ(tiles(kAda, DType::bf16, 128), "64 x 32 tiles, 2");
  EXPECT_EQ(tiles(kAda, DType::e4m3, 33), "64 x 32 tiles, 2");
  EXPECT_EQ(tiles(kTuring, DType::f16, 128), "64 x 32 tiles, 1");
  EXPECT_EQ(tiles(kTuring, DType::e4m3, 128), "16 x 32 tiles, 1");
}

/// Lists of packed rows, alone and beside plain ones in the other cache, on a device with 227 KB.
TEST(Planning, PortableLatentAttentionOfPackedRowsFits) {
  const auto tiles = [](std::int64_t dim, CacheFormat main, std::optional<CacheFormat> extra) {
    const auto selection = [&](CacheFormat format) {
      SparseLatentAttentionDesc::Selection of{.indices = contiguous(DType::i32, {1, 1, 128})};
      if (format == CacheFormat::rows) {
        of.cache.rows = contiguous(DType::bf16, {4, 64, 1, dim});
        of.cache.rows.alignment = 16;
      } else {
        of.cache = {.format = format, .blocks = 4, .page = 64, .alignment = 16};
      }
      return of;
    };
    SparseLatentAttentionDesc desc{
        .q = contiguous(DType::bf16, {1, 1, 64, dim}), .out = contiguous(DType::bf16, {1, 1, 64, 512}), .main = selection(main)};
    if (extra) desc.extra = selection(*extra);
    const auto planned =
        plan_sparse_latent_attention(desc, {Backend::cuda, 0}, {.implementation = "cuda.portable.sparse_latent_attention"});
    const std::string text(planned ? planned->explain() : to_string(planned.error()));
    const std::size_t begin = text.find(": ") + 2;
    return text.substr(begin, text.find(" stages") - begin);
  };
  EXPECT_EQ(tiles(576, CacheFormat::v32_fp8, std::nullopt), "64 x 64 tiles, 1");
  EXPECT_EQ(tiles(512, CacheFormat::v4_fp8, std::nullopt), "64 x 64 tiles, 1");
  EXPECT_EQ(tiles(512, CacheFormat::v41_fp8, CacheFormat::v41_fp4), "64 x 64 tiles, 1");
  EXPECT_EQ(tiles(512, CacheFormat::v41_fp8, CacheFormat::rows), "64 x 64 tiles, 1");
  EXPECT_EQ(tiles(576, CacheFormat::v32_fp8, CacheFormat::rows), "64 x 32 tiles, 4");
  EXPECT_EQ(tiles(576, CacheFormat::rows, std::nullopt), "64 x 64 tiles, 2");
}

}  // namespace
}  // namespace fovea::check
