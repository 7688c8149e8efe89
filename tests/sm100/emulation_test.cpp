// SPDX-License-Identifier: Apache-2.0
/// The emulation finds what it promises to: each mistake ends with the fault that names it, the same
/// kernel without mistakes with none, whatever runs first and completes when.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cuda/sm100/emulation/machine.hpp"
#include "gpu/cuda/sm100/emulation/tensor_map.hpp"
#include "small_attention.hpp"

namespace fovea::check {
namespace {

using gpu::sm100::emulation::Order;
using gpu::sm100::emulation::Schedule;
using gpu::sm100::emulation::Timing;

std::uint16_t to_bf16(float x) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
}
float from_bf16(std::uint16_t x) { return std::bit_cast<float>(std::uint32_t{x} << 16); }

constexpr std::uint16_t kNaN = 0x7fff;

/// Whole numbers, so that every order of a sum has the same result.
struct Tensors {
  static constexpr int kTiles = 3, kTail = 100;
  std::vector<std::uint16_t> q = numbers(kRows, 7), k = numbers(kTiles * kKeys, 11), v = numbers(kTiles * kKeys, 13);
  std::vector<float> out = std::vector<float>(kRows * kDim, -1);

  Tensors() {
    for (std::size_t i = ((kTiles - 1) * kKeys + kTail) * kDim; i < v.size(); ++i) v[i] = kNaN;
  }
  static std::vector<std::uint16_t> numbers(int rows, int seed) {
    std::vector<std::uint16_t> all(static_cast<std::size_t>(rows) * kDim);
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = to_bf16(static_cast<float>((i * static_cast<std::size_t>(seed) + i / 64 * 5 + i % 17) % 5) - 2);
    }
    return all;
  }

  float expected(int row, int column) const {
    const auto at = [](const std::vector<std::uint16_t>& from, int r, int c) {
      return from_bf16(from[static_cast<std::size_t>(r * kDim + c)]);
    };
    float sum = 0;
    for (int tile = 0; tile < kTiles; ++tile) {
      sum *= 0.5F;
      for (int key = tile * kKeys; key < tile * kKeys + (tile == kTiles - 1 ? kTail : kKeys); ++key) {
        float score = 0;
        for (int c = 0; c < kDim; ++c) score += at(q, row, c) * at(k, key, c);
        sum += from_bf16(to_bf16(score * 0.125F)) * at(v, key, column);
      }
    }
    return sum;
  }
};

CUtensorMap map_of(std::vector<std::uint16_t>& tensor) {
  const cuuint64_t extents[]{kDim, tensor.size() / kDim, 1, 1, 1}, strides[]{kDim * 2, 16, 16, 16};
  const cuuint32_t box[]{kDim, kKeys, 1, 1, 1}, steps[]{1, 1, 1, 1, 1};
  CUtensorMap map{};
  EXPECT_EQ(gpu::sm100::emulation::encode_tensor_map(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 5, tensor.data(), extents, strides, box, steps,
                                                     CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                     CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  return map;
}

/// The fault, or nothing.
std::string run(Mistake mistake, const Schedule& schedule, Tensors& tensors) {
  const SmallAttention params{map_of(tensors.q), map_of(tensors.k), map_of(tensors.v), tensors.out.data(), Tensors::kTiles, Tensors::kTail};
  return gpu::sm100::emulation::run(body_of(mistake), &params, {1, kThreads, storage_bytes()}, schedule).value_or("");
}
std::string run(Mistake mistake, const Schedule& schedule = {}) {
  Tensors tensors;
  return run(mistake, schedule, tensors);
}

std::vector<Schedule> schedules() {
  std::vector<Schedule> all;
  for (const Timing timing : {Timing::eager, Timing::lazy, Timing::random}) {
    all.push_back({Order::ascending, timing, 1});
    all.push_back({Order::descending, timing, 1});
    for (std::uint64_t seed = 0; seed < 4; ++seed) all.push_back({Order::random, timing, seed});
    for (const std::uint64_t seed : {0, 1, 2, 9, 11}) all.push_back({Order::starved, timing, seed});
  }
  return all;
}

TEST(Sm100Emulation, RunsACorrectKernelInEverySchedule) {
  for (const Schedule& schedule : schedules()) {
    Tensors tensors;
    ASSERT_EQ(run(Mistake::none, schedule, tensors), "")
        << "order " << static_cast<int>(schedule.order) << ", timing " << static_cast<int>(schedule.timing) << ", seed " << schedule.seed;
    for (int row = 0; row < kRows; row += 37) {
      for (int column = 0; column < kDim; ++column) {
        ASSERT_EQ(tensors.out[static_cast<std::size_t>(row * kDim + column)], tensors.expected(row, column)) << row << ", " << column;
      }
    }
  }
}

struct Found {
  Mistake mistake;
  std::string_view fault;
};
constexpr Found kFound[]{
    {Mistake::no_fence_after_commit, "tcgen05.ld of lane 31 column 256 of tensor memory is not ordered after its write by an MMA"},
    {Mistake::no_fence_before_arrival,
     "MMA: operand a: lane 0 column 256 of tensor memory is not ordered after tcgen05.st by warp 0 lane 0"},
    {Mistake::no_fence_after_arrival,
     "MMA: operand a: lane 0 column 256 of tensor memory is not ordered after tcgen05.st by warp 0 lane 0"},
    {Mistake::no_load_wait, "tcgen05.st of lane 31 column 256 of tensor memory is not ordered after tcgen05.ld by warp 0 lane 31"},
    {Mistake::no_store_wait, "MMA: operand a: lane 0 column 256 of tensor memory is not ordered after tcgen05.st by warp 0 lane 0"},
    {Mistake::rescales_in_flight, "column 384 of tensor memory is not ordered after"},
    {Mistake::overwrites_weights, "MMA: operand a: lane 0 column 256 of tensor memory is not ordered after tcgen05.st by warp 0 lane 0"},
    {Mistake::leak, "the CTA ends with 256 columns of tensor memory allocated"},
    {Mistake::frees_early, "tcgen05.dealloc: lane 0 column 384 of tensor memory is not ordered after tcgen05.ld by warp 0 lane 0"},
    {Mistake::frees_half, "tcgen05.dealloc of 128 columns at 256 of an allocation of 256"},
    {Mistake::other_lanes, "tcgen05.ld: lane of the address is 0, which warp 1 does not reach: want 32"},
    {Mistake::not_allocated, "tcgen05.ld: columns 512 to 543 of tensor memory are not allocated"},
    {Mistake::allocates_48, "tcgen05.alloc of 48 columns, want a power of two from 32 to 512"},
    {Mistake::wrong_parity, "MMA: operand: read of shared memory at byte 16384 is not ordered after its write by a copy"},
    {Mistake::too_few_bytes, "bytes of a copy arrive after the phase 0 that it began in: too few were expected"},
    {Mistake::too_many_bytes, "is in phase 0 with 1 of 1 arrivals and 16 bytes to come"},
    {Mistake::early_empty, "arrival beyond those expected"},
    {Mistake::extra_arrival, "MMA: operand a: lane 126 column 256 of tensor memory is not ordered after tcgen05.st by warp 3 lane 30"},
    {Mistake::missing_arrival, "for phase 1 of the mbarrier at byte 81968: warp 4 lane 0"},
    {Mistake::no_init_fence, "the mbarrier at byte 81920 is used by asynchronous work without fence.mbarrier_init"},
    {Mistake::no_block_sync, "is read before any write"},
    {Mistake::init_twice, "mbarrier.init of the mbarrier at byte 81920, which is one already"},
    {Mistake::no_init, "the mbarrier at byte 81960 is used before mbarrier.init"},
    {Mistake::lapped, "wait for phase 0, which is past: the mbarrier at byte 81984 is in phase 3"},
    {Mistake::lapped_while_waiting, "wait for phase 0, which is past: the mbarrier at byte 81984 is in phase 2"},
    {Mistake::no_proxy_fence, "is not ordered after its write by warp 0 lane 16: no fence.proxy.async between"},
    {Mistake::no_wait_for_copy, "MMA: operand: read of shared memory at byte 16384 is not ordered after its write by a copy"},
    {Mistake::mailbox_race, "is read before any write"},
    {Mistake::reads_unwritten, "shared memory at byte 82508 is read before any write"},
    {Mistake::misaligned_copy, "shared memory at byte 16 is not aligned to 128"},
    {Mistake::overwrites_queries, "TMA: write of shared memory at byte 0 is not ordered after its read by an MMA"},
    {Mistake::unfinished_copy, "the CTA ends with copies that no thread has waited for: the mbarrier at byte 81984"},
    {Mistake::half_sync, "is at tcgen05.ld, other lanes of its warp at sync_warp"},
    {Mistake::different_collectives, "is at elect.sync, other lanes of its warp at sync_warp"},
    {Mistake::different_addresses, "tcgen05.ld with 1103806595104, other lanes of its warp with 1099511627808"},
    {Mistake::leaves_early, "at tcgen05.wait::st of a warp: 21 lanes of warp 3"},
    {Mistake::named_count, "named barrier 1 of 160 threads, of others 128"},
    {Mistake::registers_of_three_warps, "setmaxnreg: warp 3 has, the first of its warpgroup 152"},
    {Mistake::version, "MMA: descriptor of a: version (bits 46 to 48) is 0, want 1"},
    {Mistake::swizzle, "MMA: descriptor of a: swizzle (bits 61 to 63) is 4, want 2"},
    {Mistake::stride, "MMA: descriptor of a: stride is 512, want a multiple of 1024"},
    {Mistake::reserved_bit, "MMA: instruction descriptor: reserved (bits 23 to 23) is 1, want 0"},
    {Mistake::columns_of_24, "MMA: instruction descriptor: N is 24, want a multiple of 16 from 16 to 256"},
    {Mistake::rows_of_64, "MMA: instruction descriptor: M / 16 (bits 24 to 28) is 4, want 8"},
    {Mistake::other_element, "MMA: instruction descriptor: not of the kernel's element"},
    {Mistake::a_transposed, "MMA: descriptor of a: start address is 1056, want a multiple of 128"},
    {Mistake::unaligned_start, "MMA: descriptor of a: start address is 1280, want in the first row of 1024 bytes"},
    {Mistake::two_issuers, "MMA: warp 4 lane 0 has issued others"},
    {Mistake::commit_by_another, "tcgen05.commit: warp 4 lane 0 has issued the MMAs"},
    {Mistake::unfinished_mma, "the CTA ends with MMAs that no thread has waited for: 36 of 40"},
    {Mistake::accumulates_nothing, "MMA: accumulator: lane 0 column 384 of tensor memory is read before any write"},
};

TEST(Sm100Emulation, NamesEachMistake) {
  for (const auto& [mistake, fault] : kFound) {
    const std::string got = run(mistake);
    EXPECT_NE(got.find(fault), std::string::npos) << fault << ": got '" << got << "'";
  }
}

TEST(Sm100Emulation, KnowsEveryMistake) {
  // All but `none` and the one whose registers show it.
  EXPECT_EQ(std::size(kFound), static_cast<std::size_t>(Mistake::count) - 2);
}

TEST(Sm100Emulation, FindsEachMistakeInEverySchedule) {
  for (const Schedule& schedule : schedules()) {
    for (const auto& [mistake, fault] : kFound) {
      EXPECT_NE(run(mistake, schedule), "") << fault << ": order " << static_cast<int>(schedule.order) << ", timing "
                                            << static_cast<int>(schedule.timing) << ", seed " << schedule.seed;
    }
  }
}

TEST(Sm100Emulation, PoisonsRegistersUntilTheirWait) {
  Tensors tensors;
  ASSERT_EQ(run(Mistake::reads_registers_early, {}, tensors), "");
  EXPECT_TRUE(std::isnan(tensors.out.front()));
}

TEST(Sm100Emulation, GoesOnAfterAFault) {
  EXPECT_NE(run(Mistake::leak), "");
  EXPECT_EQ(run(Mistake::none), "");
}

}  // namespace
}  // namespace fovea::check
