// SPDX-License-Identifier: Apache-2.0
/// The kernels of paged attention by cache type, head dims and rows of a query tile, and how many of a CTA's stages fit a device.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLimit = 1 << 30;  // rows of q, work tiles, slots of a page: they are counted in ints
inline constexpr int kWarps = 4, kThreads = 32 * kWarps;
inline constexpr int kWarpKeys = 16, kKeyTile = kWarps * kWarpKeys;      // each warp loads 16 keys of a tile
inline constexpr int kNarrowRows = 8, kMiddleRows = 16, kWideRows = 64;  // of a query tile
/// With four stages, loads of one CTA keep those of others waiting: 409 us for 403 (64 sequences of 8192, e4m3), 395 for 389 (16-bit, head
/// dim 64). bench/results/nvidia-h100/2026-11-25-paged-attention-variants.json
inline constexpr int kMostStages = 3;
/// Bytes of a row from which on the warps of a CTA go their own ways. Rows of 128 bytes take 401 us together and 412 apart (64
/// sequences of 8192, e4m3), 120 and 125 (16 sequences), 388 and 394 (16-bit, head dim 64). Rows of 256 bytes take as long. Same file.
inline constexpr int kLongRow = 256;

/// `Cache`: the type of keys and values. Query rows of a tile are the second operand of products where they are few (8), and the first one
/// else, 16 to a warp.
template <class Cache_, int kHeadDim_, int kRowTile_>
struct Config {
  using Cache = Cache_;
  static constexpr bool kQuantised = sizeof(Cache) == 1;
  using Element = std::conditional_t<kQuantised, __half, Cache>;  // of products
  static constexpr int kHeadDim = kHeadDim_, kRowTile = kRowTile_;
  static constexpr bool kNarrow = kRowTile == kNarrowRows;
  static constexpr int kRowBytes = kHeadDim * static_cast<int>(sizeof(Cache)), kTileBytes = kKeyTile * kRowBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;           // keys, then values
  static constexpr int kGroups = kRowTile <= 16 ? kWarps : 1;  // of keys: each has results of its own for all rows of the tile
  static constexpr int kResultRow = kHeadDim + 4;              // floats; the padding spreads rows over banks
  static constexpr int kResultBytes = kGroups * kRowTile * kResultRow * static_cast<int>(sizeof(float));
  static_assert(kHeadDim % 64 == 0 && (kNarrow || kGroups * kRowTile == 16 * kWarps));
};

/// Shared memory beside the ring: queries, states of rows, their factors; the work tile.
template <class Config>
inline constexpr int kFixedBytes = (2 * Config::kRowTile * Config::kHeadDim + (8 * Config::kGroups + 4) * Config::kRowTile + 127) / 128 *
                                       128 +
                                   128;

/// Results of a work tile lie where its keys and values were.
template <class Config>
constexpr int shared_bytes(int stages) {
  return kFixedBytes<Config> + std::max(stages * Config::kStageBytes, Config::kResultBytes);
}

/// Stages in shared memory and CTAs of a multiprocessor.
struct Shape {
  int stages = 0, ctas = 1;
};

/// Two CTAs where each has two stages, else one; no stage where nothing fits. Of e4m3 caches under few query rows, whose tiles are small
/// and take more instructions for each byte, three with three stages: 165 for 187 us (256 sequences of 1024, H200, 2026-11-25), as much for
/// few long ones.
template <class Config>
constexpr Shape shape_of(int shared_bytes_per_block, int shared_bytes_per_multiprocessor) {
  constexpr int kReserved = 1024;  // of each CTA, by the system
  const auto fits = [&](int stages, int ctas) {
    const int bytes = shared_bytes<Config>(stages);
    return bytes <= shared_bytes_per_block && ctas * (bytes + kReserved) <= shared_bytes_per_multiprocessor;
  };
  for (const int ctas : {3, 2, 1}) {
    if (ctas == 3 && !(Config::kQuantised && Config::kNarrow)) continue;
    for (int stages = kMostStages; stages >= ctas; --stages) {
      if (fits(stages, ctas)) return {stages, ctas};
    }
  }
  return {};
}

}  // namespace fovea::gpu::portable::paged_attention
