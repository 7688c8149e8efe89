// SPDX-License-Identifier: Apache-2.0
/// Which tiles a call takes. None is measured: README.md has the model that they follow.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "gpu/common/tuning_table.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::cdna::paged_attention {

inline constexpr int kWaves = 4;  ///< of a workgroup

/// A query tile has rows of one sequence: its tokens, each with all heads of a kv head.
struct Tuning {
  int head_dim = 0;          ///< largest, of K
  int row_blocks = 1;        ///< of 16 rows, of a wave
  int key_waves = 1;         ///< waves that share the rows of a query tile and divide its keys; the others have other rows
  int key_tile = 32;         ///< keys of a step
  int waves = 2;             ///< least resident waves of a SIMD, which bounds the registers (Config::kResidentWaves)
  int value_dim = head_dim;  ///< largest, of V

  constexpr int row_waves() const { return kWaves / key_waves; }
  constexpr int row_tile() const { return 16 * row_blocks * row_waves(); }
  /// Registers of 16 rows: accumulators of each channel, and a maximum and a sum in every lane.
  constexpr int state_words() const { return 64 * (value_dim / 4 + 2); }
};

inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    // Decode: few rows, so that waves divide the keys. Bytes in flight bound it: a wave has a tile of K and one of V.
    {"64_decode", {64, 1, 4, 32, 3}},
    {"128_decode", {128, 1, 4, 32, 2}},
    {"256_decode", {256, 1, 4, 16, 2}},
    // Prefill: more rows for each key that is loaded; the waves of a workgroup find the same keys in the cache (L1). With head dim 128,
    // tiles
    // of 32 keys spill where they are of e4m3.
    {"64_prefill", {64, 2, 1, 32, 2}},
    {"128_prefill", {128, 2, 1, 16, 2}},
    {"256_prefill", {256, 1, 1, 16, 2}},
});

/// The average rows of a sequence from which query tiles of all waves are filled.
inline constexpr std::int64_t kPrefillRows = 32;

/// `rows`: of all sequences, for one kv head.
constexpr bool is_prefill(std::int64_t rows, std::int64_t sequences) { return rows >= kPrefillRows * sequences; }

constexpr std::size_t tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v, bool prefill) {
  std::size_t index = prefill ? kTunings.size() / 2 : 0;
  while (kTunings[index].head_dim < head_dim_qk || kTunings[index].head_dim < head_dim_v) ++index;
  return index;
}

/// Splits are of at least kLeastKeys keys.
inline constexpr std::int64_t kLeastKeys = 256, kMostSplits = 128;
/// Workgroups of a compute unit that splits make: in decoding, which waits for memory and has more bytes in flight than its share of HBM
/// with one; in what computes most of the time, e4m3 included, with two for each other's latencies; and at most, where that is more even.
inline constexpr std::int64_t kWaitingGroups = 1, kComputingGroups = 2, kMostGroups = 4;

constexpr std::int64_t most_splits(std::int64_t keys) {
  const std::int64_t splits = detail::ceil_div(keys, kLeastKeys);
  return splits < 1 ? 1 : splits > kMostSplits ? kMostSplits : splits;
}

/// Partial results of 16 rows that there is room for. It grows with both arguments. `tiles`: query tiles of 16 rows, for each kv head.
constexpr std::int64_t most_partials(std::int64_t tiles, std::int64_t keys, std::int64_t compute_units) {
  const std::int64_t slots = compute_units * kMostGroups, wanted = tiles * most_splits(keys);
  return most_splits(keys) == 1 ? 0 : wanted < slots ? wanted : slots;
}

/// `tiles`: query tiles of `blocks` times 16 rows, for each kv head; `partials`: what there is room for. A call that computes is as slow as
/// the compute unit with most workgroups: it takes more splits where they are more even by a twentieth.
constexpr std::int64_t splits_of(std::int64_t tiles, std::int64_t blocks, std::int64_t keys, std::int64_t partials,
                                 std::int64_t compute_units, bool computes) {
  if (tiles <= 0) return 1;
  std::int64_t most = most_splits(keys);
  for (const std::int64_t bound : {compute_units * (computes ? kMostGroups : kWaitingGroups) / tiles, partials / (tiles * blocks)})
    most = bound < most ? bound : most;
  if (!computes || most <= 1) return most < 1 ? 1 : most;
  const std::int64_t wanted = compute_units * kComputingGroups / tiles;
  const auto rounds = [&](std::int64_t splits) { return detail::ceil_div(tiles * splits, compute_units); };
  std::int64_t best = wanted < 1 ? 1 : wanted < most ? wanted : most;
  for (std::int64_t splits = best + 1; splits <= most; ++splits) {
    if (20 * rounds(splits) * best < 19 * rounds(best) * splits) best = splits;
  }
  return best;
}

}  // namespace fovea::gpu::cdna::paged_attention
