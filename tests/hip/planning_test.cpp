// SPDX-License-Identifier: Apache-2.0
/// The host's side of HIP calls, with emulated devices: what is listed, how much workspace a plan takes, and runs that share a schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device_runtime.hpp"
#include "fovea/fovea.hpp"
#include "gpu/hip/cdna/implementations.hpp"
#include "gpu/hip/cdna/latent_attention/tuning.hpp"
#include "gpu/hip/cdna/paged_attention/tuning.hpp"
#include "op/common/numeric.hpp"
#include "run_case.hpp"

namespace fovea::check {
namespace {

namespace cdna = gpu::cdna::paged_attention;

PagedAttentionDesc decode(std::int64_t batch, std::int64_t seq_q, std::int64_t keys, std::int64_t kv_heads = 1) {
  constexpr std::int64_t kPage = 16, kDim = 64;
  const std::int64_t rows = batch * seq_q, blocks = (keys + kPage - 1) / kPage;
  const TensorDesc cache = contiguous(DType::f16, {batch * blocks, kPage, kv_heads, kDim});
  const TensorDesc q = contiguous(DType::f16, {rows, 4 * kv_heads, kDim});
  return {.q = q,
          .k_cache = cache,
          .v_cache = cache,
          .block_table = contiguous(DType::i32, {batch, blocks}),
          .out = q,
          .max_seq_q = seq_q,
          .max_kv_len = keys};
}

Plan<PagedAttentionArgs> plan(const PagedAttentionDesc& desc, int capability = 94) {
  return plan_paged_attention(desc, {.backend = Backend::hip, .capability = capability}).value();
}

TEST(HipPlanning, ListsTheDevicesOfTheRuntime) {
  std::string names;
  for (const DeviceInfo& info : devices()) {
    if (info.device.backend == Backend::hip) names += info.name + ": " + info.features.at(0) + "; ";
  }
  EXPECT_EQ(names, "emulated gfx90a: gfx90a; emulated gfx942: gfx942; ");
}

TEST(HipPlanning, SaysThatNothingHasRunOnHardware) {
  for (const ImplementationInfo& info : implementations()) {
    if (info.backend != Backend::hip) continue;
    EXPECT_NE(info.accepts.find("emulated, not run on AMD hardware"), std::string::npos) << info.name;
  }
}

TEST(HipPlanning, DeclinesOtherDevices) {
  const auto planned = plan_paged_attention(decode(1, 1, 64), {.backend = Backend::hip, .capability = 110});
  ASSERT_FALSE(planned);
  EXPECT_NE(to_string(planned.error()).find("device.capability: got 110, want 90 (gfx90a) or 94 (gfx942)"), std::string::npos);
}

TEST(HipPlanning, WorkspaceGrowsWithEveryBound) {
  for (const int capability : {90, 94}) {
    for (const std::int64_t keys : {1, 256, 257, 4096, 100000}) {
      for (const std::int64_t batch : {1, 2, 7, 64, 300}) {
        for (const std::int64_t seq_q : {1, 2, 9, 40}) {
          const std::size_t bytes = plan(decode(batch, seq_q, keys), capability).workspace_bytes();
          EXPECT_LE(bytes, plan(decode(batch + 1, seq_q, keys), capability).workspace_bytes());
          EXPECT_LE(bytes, plan(decode(batch, seq_q + 1, keys), capability).workspace_bytes());
          EXPECT_LE(bytes, plan(decode(batch, seq_q, keys + 1000), capability).workspace_bytes());
        }
      }
    }
  }
}

/// Splits never have more partial results than there is room for, nor more workgroups than fit.
TEST(HipPlanning, SplitsHaveRoom) {
  for (const std::int64_t keys : {1, 300, 5000, 1000000}) {
    for (std::int64_t tiles = 1; tiles < 700; tiles += 13) {
      for (const std::int64_t blocks : {1, 4, 8}) {
        const std::int64_t partials = cdna::most_partials(tiles * blocks, keys, 110);
        for (const bool computes : {false, true}) {
          const std::int64_t splits = cdna::splits_of(tiles, blocks, keys, partials, 110, computes);
          EXPECT_GE(splits, 1);
          if (splits == 1) continue;
          EXPECT_LE(splits * tiles * blocks, partials);
          EXPECT_LE(splits * tiles, 110 * (computes ? cdna::kMostGroups : cdna::kWaitingGroups));
          EXPECT_LE((splits - 1) * cdna::kLeastKeys, keys);
        }
      }
    }
  }
}

/// 128 query tiles on 110 compute units: without splits a unit has two of them, and most have one.
TEST(HipPlanning, SplitsEvenOutWhatComputes) {
  const std::int64_t partials = cdna::most_partials(128, 8192, 110);
  EXPECT_EQ(cdna::splits_of(128, 1, 8192, partials, 110, false), 1);
  EXPECT_EQ(cdna::splits_of(128, 1, 8192, partials, 110, true), 3);
  EXPECT_EQ(cdna::splits_of(8, 1, 32768, cdna::most_partials(8, 32768, 304), 304, false), 38);
  EXPECT_EQ(cdna::splits_of(8, 1, 32768, cdna::most_partials(8, 32768, 304), 304, true), 76);
}

TEST(HipPlanning, EveryHeadDimHasATuning) {
  for (std::int64_t dim = 8; dim <= 256; dim += 8) {
    for (const std::int64_t rows : {1, 31, 32, 1000}) {
      const cdna::Tuning& tuning = cdna::kTunings[cdna::tuning_index(dim, 8, cdna::is_prefill(rows, 1))];
      EXPECT_GE(tuning.head_dim, dim);
      EXPECT_EQ(tuning.row_waves() == 1, rows < 32);
    }
  }
}

TEST(HipPlanning, LatentRowsHaveTilesOfTheirDims) {
  for (const std::int64_t dim : {512, 576}) {
    for (const bool prefill : {false, true}) {
      const cdna::Tuning& tuning = gpu::cdna::latent_attention::kTunings[gpu::cdna::latent_attention::tuning_index(dim, prefill)];
      EXPECT_EQ(tuning.head_dim, dim);
      EXPECT_EQ(tuning.value_dim, 512);
      EXPECT_EQ(tuning.row_waves() > 1, prefill);
    }
  }
}

/// Cases whose keys are split, with the kernels that split them.
using OfKernel = std::pair<std::string_view, std::string_view>;
constexpr OfKernel kSplit[]{{"hip.cdna.paged_attention", "paged_attention/split/bf16-one-sequence"},
                            {"hip.cdna.latent_attention", "latent_attention/split/bf16-h16"}};

TEST(HipPlanning, BatchInvariantRowsAreNotSplit) {
  for (const auto& [kernel, name] : {kSplit[0], kSplit[1], OfKernel{"hip.cdna.paged_attention", "paged_attention/mixed/bf16-page16"}}) {
    const AnyCase* entry = find_any_case(name);
    ASSERT_NE(entry, nullptr) << name;
    const auto trial = entry->bind();
    const auto planned = trial->plan({.implementation = kernel, .batch_invariant = true}, {.device = device_of(kernel)});
    ASSERT_TRUE(planned);
    EXPECT_EQ(planned->explanation.find(" splits"), std::string::npos);
    EXPECT_EQ(planned->workspace_bytes, 0U);
    const Report report = run_case(*trial, kernel, {.batch_invariant = true});
    EXPECT_EQ(report.status, Status::passed) << report.message;
  }
}

/// Nor does the batch choose their kernel, whose tiles say in which order keys are added up.
TEST(HipPlanning, BatchesDoNotChooseTheKernelOfInvariantRows) {
  const auto choice = [](std::int64_t batch, std::int64_t seq_q, bool batch_invariant) {
    const Device device{.backend = Backend::hip, .capability = 94};
    return plan_paged_attention(decode(batch, seq_q, 256), device, {.batch_invariant = batch_invariant}).value().explain();
  };
  EXPECT_NE(choice(2, 1, false), choice(2, 500, false));
  EXPECT_EQ(choice(2, 1, true), choice(2, 500, true));
  EXPECT_EQ(choice(2, 1, true), choice(300, 1, true));
}

constexpr std::string_view kLatent = "hip.cdna.latent_attention";
constexpr std::int64_t kHeads = 20, kRow = 576, kPage = 16, kBlocks = 40;

/// Numbers of bf16 from 0.5 to 1, of either sign.
std::vector<std::uint16_t> numbers(std::int64_t count, std::uint32_t state) {
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(count));
  for (std::uint16_t& each : bits) {
    state = state * 1664525U + 1013904223U;
    each = static_cast<std::uint16_t>((state >> 16 & 0x807fU) | 0x3f00U);
  }
  return bits;
}

/// Sequences with a query each. Block b of sequence i is block kBlocks * (first + i) + b of the cache.
struct LatentResult {
  std::vector<std::uint16_t> out;
  std::vector<float> lse;
};
LatentResult latent_attention(std::string_view name, const LatentCacheDesc& cache, const void* rows, std::int64_t first,
                              const std::vector<std::int32_t>& lengths) {
  const auto batch = static_cast<std::int64_t>(lengths.size());
  const LatentAttentionDesc desc{.q = contiguous(DType::bf16, {batch, 1, kHeads, kRow}),
                                 .out = contiguous(DType::bf16, {batch, 1, kHeads, 512}),
                                 .block_table = contiguous(DType::i32, {batch, kBlocks}),
                                 .cache = cache,
                                 .lse = contiguous(DType::f32, {batch, kHeads, 1})};
  const Device device = name == kLatent ? device_of(name) : Device{};
  const auto planned = plan_latent_attention(desc, device, {.implementation = name, .batch_invariant = true}).value();
  std::vector<std::int32_t> table(static_cast<std::size_t>(batch * kBlocks));
  std::iota(table.begin(), table.end(), static_cast<std::int32_t>(first * kBlocks));
  const std::vector<std::uint16_t> q = numbers((first + batch) * kHeads * kRow, 1);
  LatentResult result{std::vector<std::uint16_t>(static_cast<std::size_t>(batch * kHeads * 512), 7),
                      std::vector<float>(static_cast<std::size_t>(batch * kHeads), 7)};
  const LatentAttentionArgs args{.q = q.data() + first * kHeads * kRow,
                                 .cache = rows,
                                 .out = result.out.data(),
                                 .lse = result.lse.data(),
                                 .block_table = table.data(),
                                 .kv_len = lengths.data()};
  std::vector<std::byte> workspace(planned.workspace_bytes());
  EXPECT_TRUE(planned.run(args, {workspace.data(), workspace.size()}));
  return result;
}

TEST(HipPlanning, InvariantLatentRowsAreThoseOfTheSequenceAlone) {
  const std::vector<std::int32_t> lengths{37, 640, 0, 1, 400};
  const auto blocks = static_cast<std::int64_t>(lengths.size()) * kBlocks;
  const std::vector<std::uint16_t> rows = numbers(blocks * kPage * kRow, 2);
  const LatentCacheDesc cache{.rows = contiguous(DType::bf16, {blocks, kPage, 1, kRow})};
  const LatentResult together = latent_attention(kLatent, cache, rows.data(), 0, lengths);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const LatentResult alone = latent_attention(kLatent, cache, rows.data(), static_cast<std::int64_t>(i), {lengths[i]});
    const auto of_batch = together.out.begin() + static_cast<std::ptrdiff_t>(i * alone.out.size());
    EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.end(), of_batch)) << lengths[i];
  }
}

/// Such scales are part of the factor that widens codes. The case table has others.
TEST(HipPlanning, ScalesOfPackedRowsMayBePowersOfTwo) {
  constexpr std::int64_t kTokens = kBlocks * kPage;
  const LatentCacheDesc cache{.format = CacheFormat::v32_fp8, .blocks = kBlocks, .page = kPage};
  const std::vector<std::uint16_t> rows = numbers(kTokens * kRow, 2);
  std::vector<std::byte> packed(static_cast<std::size_t>(kTokens * packed_format(cache.format)->bytes()));
  std::vector<std::int64_t> slots(static_cast<std::size_t>(kTokens));
  std::iota(slots.begin(), slots.end(), 0);
  const auto quantize = plan_quantize_latent_cache({.rows = contiguous(DType::bf16, {kTokens, kRow}), .cache = cache}).value();
  ASSERT_TRUE(quantize.run({.rows = rows.data(), .cache = packed.data(), .slot_mapping = slots.data()}));
  const LatentResult got = latent_attention(kLatent, cache, packed.data(), 0, {601});
  const LatentResult want = latent_attention("reference.latent_attention", cache, packed.data(), 0, {601});
  for (std::size_t i = 0; i < want.lse.size(); ++i) EXPECT_NEAR(got.lse[i], want.lse[i], 1e-5F);
  for (std::size_t i = 0; i < want.out.size(); ++i) {
    ASSERT_NEAR(detail::f32_from_bf16(got.out[i]), detail::f32_from_bf16(want.out[i]), 2e-3F) << i;
  }
}

/// Each run leaves the counters as the next needs them.
TEST(HipPlanning, RunsShareASchedule) {
  for (const auto& [kernel, name] : kSplit) {
    const AnyCase* entry = find_any_case(name);
    ASSERT_NE(entry, nullptr) << name;
    const auto trial = entry->bind();
    const PlacedTrial placed(*trial, kernel);
    const auto planned = trial->plan({.implementation = kernel}, placed.place());
    ASSERT_TRUE(planned);
    ASSERT_NE(planned->explanation.find(" splits"), std::string::npos) << name;
    const HostileWorkspace workspace(planned->workspace_bytes);
    ASSERT_TRUE(planned->prepare(workspace.view()));
    for (int run = 0; run < 3; ++run) {
      ASSERT_TRUE(planned->run_prepared(workspace.view()));
      const Judgement verdict = trial->judge();
      EXPECT_TRUE(verdict.ok) << name << ": " << verdict.message;
    }
  }
}

/// Rows that no sequence has, and those past the bound of lengths, which a device cuts. Between the heads, and between the rows of lse,
/// lies what is not theirs.
TEST(HipPlanning, FillsRowsThatNoSequenceHas) {
  constexpr std::int64_t kRows = 12, kHeads = 2;
  const std::vector<std::int32_t> lengths{2, 3, 8, 8, 10};  // a sequence of 5 rows under a bound of 4
  for (const std::int64_t values : {3, 8}) {                // of two bytes: narrow and wide words
    constexpr std::int64_t kHead = 16, kRow = kHeads * kHead;
    std::vector<std::uint16_t> out(kRows * kRow, 7);
    std::vector<float> lse(kRows * (kHeads + 1), 7);
    const detail::UnownedRows rows{.cu_seqlens_q = lengths.data(),
                                   .batch = 4,
                                   .total = kRows,
                                   .bound = 4,
                                   .heads = kHeads,
                                   .out = reinterpret_cast<std::byte*>(out.data()),
                                   .row_bytes = 2 * kRow,
                                   .head_bytes = 2 * kHead,
                                   .value_bytes = 2 * values,
                                   .lse = lse.data(),
                                   .lse_row = kHeads + 1,
                                   .lse_head = 1};
    ASSERT_TRUE(gpu::cdna::fill_unowned_rows(rows, {.backend = Backend::hip}, {}));
    for (std::int64_t row = 0; row < kRows; ++row) {
      const bool filled = row < 2 || row == 7 || row >= 10;
      for (std::int64_t i = 0; i < kRow; ++i) {
        EXPECT_EQ(out[static_cast<std::size_t>(row * kRow + i)], filled && i % kHead < values ? 0 : 7) << row << ", " << i;
      }
      for (std::int64_t i = 0; i <= kHeads; ++i) {
        const float want = filled && i < kHeads ? -std::numeric_limits<float>::infinity() : 7;
        EXPECT_EQ(lse[static_cast<std::size_t>(row * (kHeads + 1) + i)], want) << row << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace fovea::check
