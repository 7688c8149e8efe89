// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernel for wide heads, by rows of a query tile and by the shared memory of a
/// device.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::wide_attention {

inline constexpr int kHeadDim = 512;    // smaller head dims are padded with zeros by the copies
inline constexpr int kColumnWarps = 4;  // warps of a row group; each has a quarter of the result's columns
inline constexpr int kParts = 2;        // parts of the keys of a tile, and of the head dim, that a row group's warps multiply
static_assert(kParts * kParts == kColumnWarps);

struct Tuning {
  int row_groups = 2;
  int blocks = 2;  ///< of 16 query rows, of each row group
  int key_tile = 64;
  static constexpr int head_dim_qk = kHeadDim, head_dim_v = kHeadDim;

  constexpr int row_tile() const { return 16 * blocks * row_groups; }
  constexpr int warps() const { return kColumnWarps * row_groups; }
  constexpr int query_bytes() const { return 2 * row_tile() * kHeadDim; }
  constexpr int tile_bytes() const { return 2 * key_tile * kHeadDim; }
  constexpr int probability_bytes() const { return 2 * row_tile() * key_tile; }
  /// Sums of products that a warp computes for its neighbour.
  constexpr int exchange_bytes() const { return 4 * 16 * blocks * key_tile / kColumnWarps; }
  constexpr int shared_bytes() const {
    return query_bytes() + 2 * tile_bytes() + probability_bytes() + warps() * exchange_bytes() + 4 * kColumnWarps * row_tile() + kWorkBytes;
  }

  static constexpr int kWorkBytes = 128;  ///< for the work tile
};

/// Rows begin with the one for most shared memory.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64x64", {2, 2, 64}},  // 227 KB: one CTA
    {"64x32", {2, 2, 32}},  // 163 KB: one CTA
    {"16x32", {1, 1, 32}},  // 227 KB: two CTAs; 99 KB: one. Few rows, and devices without room for more
});
inline constexpr int kFewRows = 16;

/// The row for this many query rows of a kv head on a device with `shared_bytes` for a CTA; the
/// number of rows where none fits.
constexpr int tuning_index(std::int64_t rows, int shared_bytes) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if ((rows > kFewRows || row.row_tile() <= kFewRows) && row.shared_bytes() <= shared_bytes) break;
    ++index;
  }
  return index;
}

/// CTAs that a multiprocessor runs at once: two have registers for four warps each.
constexpr int resident_ctas(const Tuning& row, int shared_bytes) {
  return std::clamp(std::min(8 / row.warps(), shared_bytes / row.shared_bytes()), 1, 2);
}

}  // namespace fovea::gpu::portable::wide_attention
