// SPDX-License-Identifier: Apache-2.0
/// Attention without a softmax, in the roles and the order of a real kernel: weights are scores / 8, and
/// the sums so far are halved at each key tile. Each mistake that the emulation must find is a
/// variant.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fovea::check {

inline constexpr int kRows = 128, kKeys = 128, kDim = 64;  ///< of a tile
inline constexpr int kStages = 2;
inline constexpr int kThreads = 192;  ///< four warps of weights, one of MMAs, one of copies
inline constexpr int kTileBytes = kRows * kDim * 2;

struct SmallAttention {
  CUtensorMap q, k, v;   // 5-D: dim, row, 1, 1, 1
  float* out = nullptr;  // (kRows, kDim)
  int tiles = 0;         // of keys
  int tail = kKeys;      // keys of the last tile that count; rows of v behind them are cleared
};

enum class Mistake : std::uint8_t {
  none,
  // tensor memory
  no_fence_after_commit,
  no_fence_before_arrival,
  no_fence_after_arrival,
  no_load_wait,
  no_store_wait,
  rescales_in_flight,
  overwrites_weights,
  leak,
  frees_early,
  frees_half,
  other_lanes,
  not_allocated,
  reads_registers_early,
  allocates_48,
  // mbarriers
  wrong_parity,
  too_few_bytes,
  too_many_bytes,
  early_empty,
  extra_arrival,
  missing_arrival,
  no_init_fence,
  no_block_sync,
  init_twice,
  no_init,
  lapped,
  lapped_while_waiting,
  // shared memory
  no_proxy_fence,
  no_wait_for_copy,
  mailbox_race,
  reads_unwritten,
  misaligned_copy,
  overwrites_queries,
  unfinished_copy,
  // warps
  half_sync,
  different_collectives,
  different_addresses,
  leaves_early,
  named_count,
  registers_of_three_warps,
  // descriptors
  version,
  swizzle,
  stride,
  reserved_bit,
  columns_of_24,
  rows_of_64,
  other_element,
  a_transposed,
  unaligned_start,
  // MMAs
  two_issuers,
  commit_by_another,
  unfinished_mma,
  accumulates_nothing,
  count,
};

/// The body of a thread. `params` is a SmallAttention.
using Body = void (*)(const void* params);
Body body_of(Mistake mistake);
std::size_t storage_bytes();

}  // namespace fovea::check
