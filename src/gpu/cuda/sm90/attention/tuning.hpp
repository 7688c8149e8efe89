// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel by head dims, and how calls with few query rows fill them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace fovea::gpu::sm90::attention {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int warpgroups = 2;                   ///< consumers, of 64 query rows each
  int key_tile = 128;
  int key_stages = 2, value_stages = 2;
  int query_buffers = 2;  ///< with two, the queries of the next work tile arrive while this one is computed
  int math_registers = 216;
  bool turns = false;  ///< consumers issue their products by turns
  int cluster = 1;     ///< CTAs with neighbouring query tiles that share their keys and values: each loads a part for all

  constexpr int row_tile() const { return 64 * warpgroups; }
};

/// Narrowest first; of equal head dims, the row with a cluster first. The figures are from
/// bench/results/nvidia-h100/2026-11-24-dense-attention-variants.json: an H100 and an H200 at their power limit.
inline constexpr std::array kTunings{
    Tuning{64, 64, 3, 128, 4, 4, 2, 160, true, 1},     // without turns 5 % slower, with 2 warpgroups 9 to 13 %
    Tuning{96, 96, 2, 128, 2, 3, 2, 216, false, 1},    // turns make no difference
    Tuning{128, 128, 2, 128, 2, 3, 2, 216, true, 2},   // up to 5 % over a CTA alone where neither idles at an edge
    Tuning{128, 128, 2, 128, 2, 3, 2, 216, true, 1},   // 128 x 160 tiles: up to 6 % slower
    Tuning{192, 128, 2, 128, 2, 2, 1, 216, false, 2},  // full masks: 3 to 6 % over a CTA alone
    Tuning{192, 128, 2, 128, 2, 2, 1, 216, false, 1},  // two query buffers and 96 keys: 2 to 5 % slower
    Tuning{192, 192, 2, 96, 2, 2, 1, 216, false, 1},   // what fits; not measured against others
    Tuning{256, 256, 2, 80, 2, 2, 1, 216, false, 1},   // turns make no difference
};

/// Of e4m3 inputs. None has been measured against others yet. Beside each, accumulators of a lane: results and scores.
inline constexpr std::array kTunings8{
    Tuning{64, 64, 3, 128, 3, 3, 2, 160, false, 1},    // 32 + 64
    Tuning{96, 96, 3, 128, 2, 2, 2, 160, false, 1},    // 48 + 64
    Tuning{128, 128, 2, 192, 2, 2, 2, 216, false, 1},  // 64 + 96
    Tuning{192, 128, 2, 128, 2, 2, 2, 216, false, 1},  // 64 + 64
    Tuning{192, 192, 2, 128, 2, 2, 1, 216, false, 1},  // 96 + 64
    Tuning{256, 256, 2, 128, 2, 2, 1, 232, false, 1},  // 128 + 64: with 216 registers the loop spills
};

constexpr std::span<const Tuning> tunings_of(bool eight_bit) {
  return eight_bit ? std::span<const Tuning>(kTunings8) : std::span<const Tuning>(kTunings);
}

/// The first row that takes these head dims, both at most 256. `pairs`: neighbouring query tiles see the same keys, or nearly.
constexpr int tuning_index(std::span<const Tuning> rows, std::int64_t head_dim_qk, std::int64_t head_dim_v, bool pairs) {
  int index = 0;
  for (const Tuning& row : rows) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && (pairs || row.cluster == 1)) break;
    ++index;
  }
  return index;
}

/// Whether they do: a CTA that waits at an edge for the other one of its cluster would cost more than sharing keys saves.
constexpr bool sees_in_pairs(std::int64_t seq_q, bool ragged, bool causal, bool window) {
  constexpr std::int64_t kLeast = 512, kLeastCausal = 8192;
  return !ragged && !window && seq_q >= (causal ? kLeastCausal : kLeast);
}

/// Query heads of one kv head that share a query tile: as many as fill it, a power of two that divides `group`.
constexpr int packed_heads(std::int64_t group, std::int64_t seq_q, int row_tile) {
  int packed = 1;
  while (packed < 64 && group % (2 * packed) == 0 && seq_q * packed < row_tile) packed *= 2;
  return packed;
}

/// Parts of the keys of each query tile, for calls with fewer work tiles than multiprocessors: each has four key tiles at least.
constexpr int splits_of(std::int64_t work_tiles, std::int64_t key_tiles, int multiprocessors) {
  constexpr std::int64_t kMost = 32, kLeastTiles = 4;
  if (work_tiles == 0) return 1;
  return static_cast<int>(std::clamp<std::int64_t>(std::min(multiprocessors / work_tiles, key_tiles / kLeastTiles), 1, kMost));
}

}  // namespace fovea::gpu::sm90::attention
