// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "gpu/hip/cdna/element.hpp"
#include "gpu/hip/cdna/paged_attention/tuning.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// `Cache_`: SameCache, E4m3Cache or V32Cache.
template <class Element_, template <class> class Cache_, Tuning kTuning>
struct Config {
  using Element = Element_;
  using Cache = Cache_<Element_>;
  static constexpr Tuning kTiles = kTuning;
  static constexpr int kThreads = kLanes * kWaves;
  static constexpr int kRowBlocks = kTiles.row_blocks, kKeyWaves = kTiles.key_waves, kRowWaves = kTiles.row_waves();
  static constexpr bool kWidens = Cache::kBytes == 1;
  /// Waves of a SIMD. Values of e4m3 take registers twice, before and after they are widened.
  static constexpr int kResidentWaves = kWidens ? std::min(kTiles.waves, 2) : kTiles.waves;
  static constexpr int kKeyTile = kTiles.key_tile, kKeyBlocks = kKeyTile / 16;
  static constexpr int kWaveRows = 16 * kRowBlocks, kRowTile = kTiles.row_tile();

  // K: a lane loads chunks of 8 dims of one token; four lanes have those of 32 dims. The last ones of packed rows are of 16 bits.
  static constexpr bool kPacked = Cache::kGroup > 0;
  static constexpr int kSteps = kTiles.head_dim / 32, kKeySteps = kPacked ? kTiles.value_dim / 32 : kSteps;
  static constexpr int kRotarySteps = kSteps - kKeySteps;
  using KeyChunk = Words<2 * Cache::kBytes>;

  // V: a lane loads kChannels channels of four tokens; 16 lanes have those of a panel.
  static constexpr int kChannels = kTiles.value_dim >= 128 ? 8 : 4;
  static constexpr int kPanel = 16 * kChannels, kPanels = kTiles.value_dim / kPanel;
  using ValueChunk = Words<kChannels * Cache::kBytes / 4>;

  /// Latent attention: a SIMD has one wave, whose accumulators are in AGPRs, and the head dims of the tensors are those of the tile.
  static constexpr bool kWide = kTiles.waves == 1;
  static __device__ __forceinline__ constexpr bool within(int element, int elements) { return kWide || element < elements; }

  static constexpr int kOut = kPanels * kChannels;  // accumulators of a row block, of 4 floats a lane
  static constexpr int kStateWords = kRowBlocks * kTiles.state_words();
  static constexpr int kSharedBytes = kKeyWaves > 1 ? 4 * kStateWords + 16 : 0;
  static constexpr int kMergeRegisters = 104;  // for accumulators of splits, all of which are loaded before the first is used

  static_assert(kKeyTile % 16 == 0 && kTiles.head_dim % 32 == 0 && kTiles.value_dim % kPanel == 0);
  static_assert(!kPacked || Cache::kGroup == kPanel);
  static_assert(kTiles.state_words() == kLanes * (4 * kOut + 2));
  static_assert(kWaves % kKeyWaves == 0);
  static_assert(kRowWaves == 1 || kKeyWaves == 1, "only workgroups whose waves all have the same rows meet at barriers");
  static_assert(kSharedBytes * kResidentWaves <= 64 << 10, "as many workgroups fit LDS as registers");
};

}  // namespace fovea::gpu::cdna::paged_attention
