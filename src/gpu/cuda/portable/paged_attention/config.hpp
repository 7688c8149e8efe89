// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernels by cache type, head dim and rows of a query tile; stages and CTAs that fit a device; the launch.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/portable/paged_attention/formats.hpp"
#include "gpu/cuda/portable/paged_attention/params.hpp"
#include "gpu/cuda/portable/paged_attention/tuning.hpp"
#include "gpu/launch.hpp"

namespace fovea::gpu::portable::paged_attention {

/// Whether each warp multiplies the keys that it loads. Else each warp multiplies all keys with 16 query rows.
constexpr bool has_own_keys(int row_tile) { return row_tile <= kMiddleRows; }

/// `Cache`: the type of keys and values. Eight query rows are the B operand of MMAs; more are the A operand, 16 to a warp.
template <class Cache_, int kHeadDim_, int kRowTile_>
struct Config {
  using Cache = Cache_;
  static constexpr bool kMasked = false;
  using Format = CacheFormat<Cache>;
  static constexpr bool kQuantised = Format::kBits < 16;
  static constexpr bool kCoded = std::is_empty_v<Cache>;                                                     // a type of formats.hpp
  static constexpr bool kScaledKeys = Format::kTokenScales || Format::kBlockScales || Format::kBlockPowers;  // scales lie beside codes
  static constexpr bool kWeighted = Format::kTokenScales || Format::kBlockPowers;               // probabilities take scales of values
  static constexpr bool kDecodes = StoredElement<Cache>::kDecoded;                              // while loading
  using Element = std::conditional_t<kQuantised, __half, typename StoredElement<Cache>::Type>;  // operands of MMAs
  static constexpr bool kOwnKeys = has_own_keys(kRowTile_);
  static constexpr int kHeadDim = kHeadDim_, kRowTile = kRowTile_;
  static constexpr bool kNarrow = kRowTile == kNarrowRows;
  static constexpr int kFactors = Format::kZeroPoints ? 2 : 1;  // of a query row: its power of two, and the sum of its elements
  static constexpr int kKeyTiles = kScaledKeys && !kDecodes && kOwnKeys && kHeadDim <= 128 ? 2 : 1;  // of a stage, computed together
  static constexpr int kWarpKeys = kKeyTiles * kGroupKeys, kStageKeys = kKeyTiles * kTileKeys;
  static constexpr int kRowBytes = kHeadDim * Format::kBits / 8, kTileBytes = kStageKeys * kRowBytes;
  static constexpr int kPowers = Format::kBlockPowers ? kHeadDim / 32 : 0;                                      // of a key
  static constexpr int kKeyScales = Format::kTokenScales ? 4 : Format::kBlockScales ? kHeadDim / 16 : kPowers;  // bytes of a key's
  static constexpr int kPowerBytes = kStageKeys * (4 + 2) * kPowers;  // of BlockPowers: f32 of keys, halves of values
  static constexpr int kStageBytes = 2 * (kTileBytes + kStageKeys * kKeyScales) + kPowerBytes;  // keys, values, scales of each, powers
  static constexpr int kResults = kOwnKeys ? kWarps : 1;                                        // results of a row
  static constexpr int kResultRow = kHeadDim + (kNarrow ? 4 : 8);  // floats; the padding spreads rows over banks
  /// Lanes of a result row, and a lane's quads of neighbouring columns in it. A warp has several of 16 rows at once: one after another
  /// they would wait for memory as often.
  static constexpr int kRowLanes = kRowTile == kMiddleRows ? 8 : 32, kQuads = (kHeadDim / 4 + kRowLanes - 1) / kRowLanes;
  static constexpr int kResultBytes = kResults * kRowTile * kResultRow * static_cast<int>(sizeof(float));
  /// CTAs of a multiprocessor. Conversions of values depend on each other: eight warps do not hide their latency.
  static constexpr int kMostCtas = kQuantised && kNarrow && kHeadDim <= 128 ? 3 : 2;
  static_assert(kKeyScales % 4 == 0);  // words
  static_assert(kHeadDim % 64 == 0 && (kNarrow || kResults * kRowTile == 16 * kWarps));
};

/// With a packed mask: one kernel for any number of query rows.
template <class Cache, int kHeadDim>
struct MaskedConfig : Config<Cache, kHeadDim, kWideRows> {
  static constexpr bool kMasked = true;
};

/// Shared memory before the stages: queries, states of rows, their factors, work tiles.
template <class Config>
inline constexpr int kFixedBytes =
    (Config::kRowTile * (2 * Config::kHeadDim + 4 * Config::kFactors + 8 * Config::kResults) + 127) / 128 * 128 + kWorkBytes;

/// Results of a work tile overwrite its keys and values.
template <class Config>
constexpr int shared_bytes(int stages) {
  return kFixedBytes<Config> + std::max(stages * Config::kStageBytes, Config::kResultBytes);
}

/// Stages in shared memory and CTAs of a multiprocessor.
struct Shape {
  int stages = 0, ctas = 1;
};

/// Several CTAs with two or three stages each if they fit, else one CTA with up to four. Without a fit, `stages` is 0. Short rows are read
/// faster with two: with more copies in flight, CTAs of different heads drift apart.
/// `single` asks for one CTA. Loads that decode are not asynchronous: they gain by CTAs, and nothing by stages.
template <class Config>
constexpr Shape shape_of(int shared_bytes_per_block, int shared_bytes_per_multiprocessor, bool single) {
  constexpr int kReserved = 1024;  // by the system, for each CTA
  const auto fits = [&](int stages, int ctas) {
    const int bytes = shared_bytes<Config>(stages);
    return bytes <= shared_bytes_per_block && ctas * (bytes + kReserved) <= shared_bytes_per_multiprocessor;
  };
  for (int ctas = single && !Config::kDecodes ? 1 : Config::kMostCtas; ctas > 0; --ctas) {
    const int most = Config::kDecodes ? 2 : ctas == 1 ? 4 : Config::kScaledKeys ? 2 : 3;
    for (int stages = most; stages >= (Config::kDecodes ? 1 : std::min(ctas, 2)); --stages) {
      if (fits(stages, ctas)) return {stages, ctas};
    }
  }
  return {};
}

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_attend(const Params& params, int ordinal, Stream stream);

}  // namespace fovea::gpu::portable::paged_attention
