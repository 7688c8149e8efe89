// SPDX-License-Identifier: Apache-2.0
#include "small_attention.hpp"

#include <array>
#include <bit>
#include <cstddef>
#include <utility>

#include "gpu/cuda/sm100/barrier.cuh"
#include "gpu/cuda/sm100/mma.cuh"
#include "gpu/cuda/sm100/tensor_memory.cuh"
#include "gpu/cuda/sm100/thread.cuh"
#include "gpu/cuda/sm100/tma.cuh"

namespace fovea::check {
namespace {

using namespace gpu::sm100;
using enum Mistake;

constexpr int kColumns = 256, kSumColumn = 128;  ///< of tensor memory: scores and weights, then sums

struct alignas(1024) Storage {
  std::byte q[kTileBytes];
  std::byte k[kStages][kTileBytes], v[kStages][kTileBytes];
  std::uint64_t q_full, full[kStages], empty[kStages], scores_full, weights_full, sums_full, unused;
  std::uint32_t tensor_memory;
  float mailbox[kRows], unwritten;
};

std::uint32_t bf16_pair(float a, float b) {
  const auto round = [](float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
  };
  return round(a) | round(b) << 16;
}

// ---- descriptors, as PTX's tables have them; not those of the library, which the emulation checks -----------------------------------

template <Mistake kMistake>
std::uint64_t shared_words(const void* at, int offset, int stride) {
  const std::uint64_t address = shared_address(at) + static_cast<std::uint32_t>(offset) + (kMistake == unaligned_start ? 256 : 0);
  const std::uint64_t marks = kMistake == version ? 0 : 1, pattern = kMistake == swizzle ? 4 : 2;
  const std::uint64_t step = kMistake == Mistake::stride ? 512 : static_cast<std::uint64_t>(stride);
  return (address & 0x3ffff) >> 4 | std::uint64_t{1024} >> 4 << 16 | step >> 4 << 32 | marks << 46 | pattern << 61;
}

template <Mistake kMistake>
std::uint32_t instruction_words(int columns, bool b_transposed) {
  const std::uint32_t n = kMistake == columns_of_24 ? 24 : static_cast<std::uint32_t>(columns), m = kMistake == rows_of_64 ? 64 : 128;
  const std::uint32_t element = kMistake == other_element ? 0 : 1;
  return 1U << 4 | element << 7 | element << 10 | (kMistake == a_transposed ? 1U << 15 : 0) | (b_transposed ? 1U << 16 : 0) | n / 8 << 17 |
         m / 16 << 24 | (kMistake == reserved_bit ? 1U << 23 : 0);
}

// ---- roles --------------------------------------------------------------------------------------------------------------------------

template <Mistake kMistake>
void produce(const SmallAttention& params, Storage& storage) {
  barrier_arrive_expect_tx(storage.q_full, kTileBytes);
  tma_load(storage.q + (kMistake == misaligned_copy ? 16 : 0), &params.q, {0, 0, 0, 0, 0}, storage.q_full);
  PipelineState<kStages> at;
  for (int tile = 0; tile < params.tiles; ++tile, at.advance()) {
    if (kMistake != early_empty || tile < kStages) barrier_wait(storage.empty[at.stage], at.parity ^ 1);
    constexpr int kBytes = 2 * kTileBytes + (kMistake == too_few_bytes ? -kTileBytes : kMistake == too_many_bytes ? 16 : 0);
    barrier_arrive_expect_tx(storage.full[at.stage], kBytes);
    tma_load(storage.k[at.stage], &params.k, {0, tile * kKeys, 0, 0, 0}, storage.full[at.stage]);
    tma_load(storage.v[at.stage], &params.v, {0, tile * kKeys, 0, 0, 0}, storage.full[at.stage]);
  }
  if constexpr (kMistake == overwrites_queries || kMistake == unfinished_copy) {
    if constexpr (kMistake == unfinished_copy) barrier_wait(storage.empty[(params.tiles - 1) % kStages], (params.tiles - 1) / kStages % 2);
    barrier_arrive_expect_tx(storage.unused, kTileBytes);
    tma_load(storage.q, &params.q, {0, 0, 0, 0, 0}, storage.unused);
  }
}

template <Mistake kMistake>
void multiply_scores(Storage& storage, int stage, std::uint32_t base) {
  for (int step = 0; step < kDim / 16; ++step) {
    mma_ss<__nv_bfloat16>(base, shared_words<kMistake>(storage.q, 32 * step, 1024),
                          shared_words<kMistake>(storage.k[stage], 32 * step, 1024), instruction_words<kMistake>(kKeys, false), step > 0);
  }
  mma_commit(storage.scores_full);
}

template <Mistake kMistake>
void multiply_values(Storage& storage, int stage, std::uint32_t base, bool first) {
  for (int step = 0; step < kKeys / 16; ++step) {
    mma_ts<__nv_bfloat16>(base + kSumColumn, base + static_cast<std::uint32_t>(8 * step),
                          shared_words<kMistake>(storage.v[stage], 2048 * step, 1024), instruction_words<kMistake>(kDim, true),
                          !first || step > 0 || kMistake == accumulates_nothing);
  }
  if constexpr (kMistake == early_empty) {
    barrier_arrive(storage.empty[stage]);
  } else {
    mma_commit(storage.empty[stage]);
  }
  mma_commit(storage.sums_full);
}

template <Mistake kMistake>
void issue(const SmallAttention& params, Storage& storage, std::uint32_t base) {
  barrier_wait(storage.q_full, 0);
  PipelineState<kStages> at;
  for (int tile = 0; tile < params.tiles; ++tile, at.advance()) {
    if constexpr (kMistake != no_wait_for_copy) barrier_wait(storage.full[at.stage], at.parity ^ (kMistake == wrong_parity ? 1 : 0));
    multiply_scores<kMistake>(storage, at.stage, base);
    barrier_wait(storage.weights_full, static_cast<std::uint32_t>(tile % 2));
    if constexpr (kMistake != no_fence_after_arrival) tmem_fence_after_sync();
    multiply_values<kMistake>(storage, at.stage, base, tile == 0);
  }
  if constexpr (kMistake == unfinished_mma) multiply_scores<none>(storage, 0, base);
}

/// Halves this row's sums, once the MMA of the tile before is complete.
template <Mistake kMistake>
void rescale(Storage& storage, std::uint32_t sums, int tile) {
  if constexpr (kMistake != rescales_in_flight) {
    barrier_wait(storage.sums_full, static_cast<std::uint32_t>((tile - 1) % 2));
    tmem_fence_after_sync();
  }
  std::uint32_t r[kDim];
  tmem_load(r, sums);
  tmem_load_wait(r);
  for (std::uint32_t& x : r) x = std::bit_cast<std::uint32_t>(std::bit_cast<float>(x) * 0.5F);
  tmem_store(sums, r);
}

/// Scores of this row to weights, in their place.
template <Mistake kMistake>
void weigh(std::uint32_t scores) {
  for (std::uint32_t half = 0; half < 2; ++half) {
    std::uint32_t r[2][32], w[32];
    tmem_load(r[0], scores + half * 64);
    tmem_load(r[1], scores + half * 64 + 32);
    if constexpr (kMistake == reads_registers_early) w[0] = r[0][0];
    if constexpr (kMistake != no_load_wait) tmem_load_wait(r[0], r[1]);
    for (int i = kMistake == reads_registers_early ? 1 : 0; i < 32; ++i) {
      const float a = std::bit_cast<float>(r[i / 16][2 * i % 32]), b = std::bit_cast<float>(r[i / 16][2 * i % 32 + 1]);
      w[i] = bf16_pair(a * 0.125F, b * 0.125F);
    }
    tmem_store(scores + half * 32, w);
  }
}

/// Clears rows of v behind the last key.
template <Mistake kMistake>
void clear_tail(const SmallAttention& params, Storage& storage, int stage, std::uint32_t parity) {
  barrier_wait(storage.full[stage], parity);
  for (int row = params.tail + warp(); row < kKeys; row += 4) {
    // A row has 128 bytes, of which the swizzle permutes 16-byte chunks.
    store_shared(reinterpret_cast<float*>(storage.v[stage])[row * 32 + lane()], 0.0F);
  }
  if constexpr (kMistake != no_proxy_fence) fence_shared_for_async();
}

template <Mistake kMistake>
void exchange(Storage& storage) {
  store_shared(storage.mailbox[thread()], static_cast<float>(thread()));
  if constexpr (kMistake != mailbox_race) named_barrier_sync(1, kMistake == named_count && warp() == 2 ? 160 : 128);
  if (load_shared(storage.mailbox[thread() ^ 64]) != static_cast<float>(thread() ^ 64)) emulation::fail("mailbox");
  if constexpr (kMistake == reads_unwritten) static_cast<void>(load_shared(storage.unwritten));
  if constexpr (kMistake == half_sync) {
    if (lane() < 16) sync_warp();
  }
  if constexpr (kMistake == different_collectives) lane() < 16 ? sync_warp() : static_cast<void>(elect_one());
}

template <Mistake kMistake>
void write_out(const SmallAttention& params, Storage& storage, std::uint32_t sums) {
  barrier_wait(storage.sums_full, static_cast<std::uint32_t>((params.tiles - 1) % 2));
  tmem_fence_after_sync();
  if (kMistake == commit_by_another && thread() == 0) mma_commit(storage.unused);
  std::uint32_t r[kDim];
  tmem_load(r, sums);
  tmem_load_wait(r);
  for (int i = 0; i < kDim; ++i) params.out[thread() * kDim + i] = std::bit_cast<float>(r[i]);
  if constexpr (kMistake != frees_early) tmem_fence_before_sync();
}

template <Mistake kMistake>
void weigh_all(const SmallAttention& params, Storage& storage, std::uint32_t base) {
  const std::uint32_t lanes = static_cast<std::uint32_t>(kMistake == other_lanes ? 0 : warp() % 4 * 32) << 16;
  const std::uint32_t scores = base + lanes, sums = scores + kSumColumn;
  exchange<kMistake>(storage);
  PipelineState<kStages> at;
  for (int tile = 0; tile < params.tiles; ++tile, at.advance()) {
    if (tile > 0) rescale<kMistake>(storage, sums, tile);
    barrier_wait(storage.scores_full, static_cast<std::uint32_t>(tile % 2));
    if constexpr (kMistake != no_fence_after_commit) tmem_fence_after_sync();
    weigh<kMistake>(scores + (kMistake == not_allocated ? kColumns - 32 : 0) +
                    (kMistake == different_addresses ? static_cast<std::uint32_t>(lane()) : 0));
    if (tile == params.tiles - 1) clear_tail<kMistake>(params, storage, at.stage, at.parity);
    if (kMistake == leaves_early && tile == 1 && thread() > 96 + 20) return;
    if constexpr (kMistake != no_store_wait) tmem_store_wait();
    if constexpr (kMistake != no_fence_before_arrival) tmem_fence_before_sync();
    if (kMistake != missing_arrival || tile == 0 || thread() != 77) barrier_arrive(storage.weights_full);
    if (kMistake == extra_arrival && thread() == 0) barrier_arrive(storage.weights_full);
    if constexpr (kMistake == overwrites_weights) {
      const std::uint32_t zeros[8]{};
      tmem_store(scores, zeros);
      tmem_store_wait();
    }
  }
  write_out<kMistake>(params, storage, sums);
}

template <Mistake kMistake>
void initialise(Storage& storage) {
  if (thread() != 0) return;
  barrier_init(storage.q_full, 1);
  if constexpr (kMistake == init_twice) barrier_init(storage.q_full, 1);
  for (int stage = 0; stage < kStages; ++stage) {
    barrier_init(storage.full[stage], 1);
    barrier_init(storage.empty[stage], 1);
  }
  if constexpr (kMistake != no_init) barrier_init(storage.scores_full, 1);
  barrier_init(storage.weights_full, 128);
  barrier_init(storage.sums_full, 1);
  barrier_init(storage.unused, 1);
  if constexpr (kMistake != no_init_fence) fence_barrier_init();
}

/// Mistakes of warps beside the roles.
template <Mistake kMistake>
void stray(Storage& storage) {
  if constexpr (kMistake == registers_of_three_warps) {
    if (warp() < 3) warpgroup_reg_dealloc<152>();
  }
  if constexpr (kMistake == lapped) {
    if (thread() == 33) {
      for (int i = 0; i < 3; ++i) barrier_arrive(storage.unused);
    }
    sync_block();
    if (thread() == 34) barrier_wait(storage.unused, 0);
  }
  if constexpr (kMistake == lapped_while_waiting) {
    if (thread() == 32) barrier_wait(storage.unused, 0);
    if (thread() == 33) {
      for (int i = 0; i < 2; ++i) barrier_arrive(storage.unused);
    }
  }
}

template <Mistake kMistake>
void attend(const void* context) {
  const auto& params = *static_cast<const SmallAttention*>(context);
  auto& storage = shared_storage<Storage>();
  const int role = warp();
  initialise<kMistake>(storage);
  if (role == 4) {
    tmem_allocate<kMistake == allocates_48 ? 48 : kColumns>(storage.tensor_memory);
    tmem_relinquish();
  }
  if constexpr (kMistake != no_block_sync) sync_block();
  const std::uint32_t base = load_shared(storage.tensor_memory);
  stray<kMistake>(storage);
  if (role < 4) weigh_all<kMistake>(params, storage, base);
  if (role == 4 && (kMistake == two_issuers ? lane() < 2 : elect_one())) issue<kMistake>(params, storage, base);
  if (role == 5 && elect_one()) produce<kMistake>(params, storage);
  sync_block();
  if constexpr (kMistake == leak || kMistake == unfinished_mma) return;
  if (role == 4) tmem_free<kMistake == frees_half ? kColumns / 2 : kColumns>(base);
}

template <std::size_t... kIndices>
constexpr auto bodies_of(std::index_sequence<kIndices...>) {
  return std::array<Body, sizeof...(kIndices)>{&attend<static_cast<Mistake>(kIndices)>...};
}

}  // namespace

Body body_of(Mistake mistake) {
  static constexpr auto kBodies = bodies_of(std::make_index_sequence<static_cast<std::size_t>(count)>());
  return kBodies[static_cast<std::size_t>(mistake)];
}

std::size_t storage_bytes() { return sizeof(Storage); }

}  // namespace fovea::check
