// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel by head dims.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::sm90::attention {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int warpgroups = 2;                   ///< consumers, of 64 query rows each
  int key_tile = 128;
  int key_stages = 2, value_stages = 2;
  int query_buffers = 2;  ///< with two, the next work tile's queries are loaded while this one is computed
  int math_registers = 216;
  bool pingpong = false;  ///< consumers alternate between MMAs and softmax
  /// Q K^T of a key tile overlaps P V of the one before. Otherwise warpgroups fill the gaps of each other,
  /// and each skips key tiles that none of its rows sees.
  bool overlap = true;
  std::int64_t rows_from = 0;  ///< least query_rows of tuning_index(), but see full_from
  int raw_stages = 0;          ///< slices of e4m3 values by rows, which the producer's warpgroup transposes
  int cluster = 1;             ///< CTAs whose query tiles see the same keys; each loads a part of a key tile for all
  std::int64_t full_from = 0;  ///< rows_from where all query tiles see the same keys, unless 0

  constexpr int row_tile() const { return 64 * warpgroups; }
  constexpr std::int64_t least_rows(bool same_keys) const { return same_keys && full_from > 0 ? full_from : rows_from; }
};

/// Whether results leave through the slot of their work tile's queries, from which TMA stores them. The next queries have another slot.
constexpr bool stages_results(const Tuning& row, bool sixteen_bit) {
  return sixteen_bit && row.query_buffers == 2 && row.head_dim_v <= row.head_dim_qk;
}

/// Whether the short query tile of a causal sequence is its first. In 16 bits, head dim 128 is level so.
constexpr bool short_tile_first(const Tuning& row, bool e4m3) { return !row.overlap && (e4m3 || row.head_dim_v <= 96); }

/// Narrowest first; of equal head dims, the row for more query rows first, as tiles of 192 rows leave more
/// of the last round idle. Figures: bench/results/nvidia-h200/2026-11-24-dense-attention-rows.json, at the
/// power limit.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 3, 128, 4, 4, 2, 160, false, false}},  // with overlap and pingpong 5 to 7 % slower; 160 keys level
    {"96", {96, 96, 3, 128, 2, 3, 1, 160, false, false}},  // 128 rows with overlap 6 to 9 % slower, 160 keys 4 %
    {"128_tall", {128, 128, 3, 128, 2, 3, 1, 160, false, false, 4096, 0, 1, 2048}},  // 128 rows with overlap 1 to 6 % slower
    {"128", {128, 128, 2, 128, 2, 3, 2, 216, true, true}},  // without overlap 8 % slower; 128 x 160 tiles up to 6 %
    {"192x128_pair", {192, 128, 3, 112, 2, 2, 1, 160, false, false, 4096, 0, 2, 3072}},  // CTAs alone 2 to 5 % slower, level from 16384 on
    {"192x128_tall", {192, 128, 3, 112, 2, 2, 1, 160, false, false, 4096, 0, 1, 3072}},  // 128 rows with overlap 1 to 7 % slower
    {"192x128", {192, 128, 2, 128, 2, 2, 1, 216, true, true}},                           // 96 keys 7 to 12 % slower, no pingpong up to 3 %
    {"192", {192, 192, 2, 96, 2, 2, 1, 216, true, true}},                                // 112 and 80 keys to 5 % slower, 64 to 7 %
    {"256_pair", {256, 256, 2, 64, 2, 3, 1, 216, true, true, 4096, 0, 2, 2048}},         // CTAs alone 1 to 3 % slower
    {"256", {256, 256, 2, 64, 2, 3, 1, 216, true, true}},  // 80 keys in 2 stages up to 10 % slower, 48 keys more
});

/// For e4m3 inputs. Beside each row, accumulators of a lane: results and scores. Only head dim 128 is
/// measured against other tiles.
inline constexpr auto kTuningsE4m3 = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 3, 128, 4, 6, 2, 160, false, false, 0, 2}},         // 32 + 64
    {"96", {96, 96, 3, 128, 4, 4, 2, 160, false, false, 0, 3}},         // 48 + 64
    {"128", {128, 128, 3, 128, 3, 3, 2, 160, false, false, 0, 2}},      // 64 + 64; 2 x 192 keys up to 17 % slower, 3 x 96 keys 8 %
    {"192x128", {192, 128, 2, 128, 2, 3, 2, 216, false, false, 0, 2}},  // 64 + 64
    {"192", {192, 192, 2, 128, 2, 2, 1, 216, false, false, 0, 4}},      // 96 + 64
    {"256", {256, 256, 2, 128, 2, 2, 2, 232, false, false, 0, 2}},      // 128 + 64: with 216 registers the loop spills
});

using Rows = std::span<const Named<Tuning>>;

constexpr Rows tunings_of(bool eight_bit) { return eight_bit ? Rows(kTuningsE4m3) : Rows(kTunings); }

/// The first row that takes these head dims, both at most 256, and `query_rows`: those of a sequence,
/// or fewer under a causal mask, where tiles differ, or more of a ragged batch, by its bounds. `same_keys`:
/// whether all query tiles of a head see the same keys.
constexpr int tuning_index(Rows rows, std::int64_t head_dim_qk, std::int64_t head_dim_v, std::int64_t query_rows, bool same_keys = false) {
  int index = 0;
  for (const Tuning& row : rows) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && query_rows >= row.least_rows(same_keys) &&
        (same_keys || row.cluster == 1))
      break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::sm90::attention
