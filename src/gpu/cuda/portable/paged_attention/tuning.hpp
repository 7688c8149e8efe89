// SPDX-License-Identifier: Apache-2.0
/// Head dims and sizes of tiles, in a header that needs nothing of CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLimit = 1 << 30;  // rows of q, work tiles, slots of a page: they are counted in ints
inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr int kGroupKeys = 16, kTileKeys = kWarps * kGroupKeys, kLog2TileKeys = 6;  // each warp loads 16 keys of a tile
static_assert(kTileKeys == 1 << kLog2TileKeys);
inline constexpr int kNarrowRows = 8, kMiddleRows = 16, kWideRows = 64;  // of a query tile
inline constexpr int kWorkBytes = 128;                                   // of two work tiles

/// The splits of each kv head for sequences of one length, at most `most`: up to a thirty-second fewer where each then has
/// whole sequences, or each sequence whole splits. Few results are then reduced, and all splits end as many work tiles.
constexpr int even_splits(int most, std::int64_t batch) {
  for (int splits = most; 32 * splits >= 31 * most; --splits) {
    if (splits % batch == 0 || batch % splits == 0) return splits;
  }
  return most;
}
static_assert(even_splits(33, 64) == 32 && even_splits(33, 16) == 32 && even_splits(33, 11) == 33 && even_splits(33, 31) == 33);

struct Tuning {
  int head_dim = 0;  ///< the largest that it takes, of keys and values; smaller ones are padded with zeros
};

/// Narrowest first. Each has kernels for query tiles of kNarrowRows, kMiddleRows and kWideRows.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64}},
    {"128", {128}},
    {"256", {256}},
});
/// Those of 4-bit codes, whose rows would be too short for smaller head dims, and of mxfp8.
inline constexpr auto kTuningsFrom128 = std::to_array<Named<Tuning>>({
    {"128", {128}},
    {"256", {256}},
});

}  // namespace fovea::gpu::portable::paged_attention
