// SPDX-License-Identifier: Apache-2.0
/// Threads and registers where two warpgroups score by turns.
#pragma once

#include "gpu/cuda/sm90/latent_attention/tiles.hpp"

namespace fovea::gpu::sm90::latent {

template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
struct TurnsBudget {
  static constexpr bool kSingleKeys = kLoad != Load::boxes;
  static constexpr bool kStages = kLoad == Load::rows;  // whether whole results may leave through the odd tile
  /// Decoded keys are late: the odd tiles' warpgroup multiplies the even tile's P V, which frees a stage, before it waits for the second
  /// half of its own keys.
  static constexpr bool kEvenFirst = kLoad == Load::codes;
  static constexpr int kLoadThreads = kLoad == Load::codes && kCluster == 1 ? 256 : 128;
  static constexpr int kThreads = kMathThreads + kLoadThreads;
  static constexpr int kPool = 65536 / kThreads / 8 * 8;  // registers of each thread at launch, which the roles share
  static constexpr bool kWideMmas = kPool >= 158;         // ptxas wants as many for an MMA of 256 columns: 128 accumulators and some
  static constexpr int kMathRegisters = kLoad == Load::codes ? 192 : 216;
  static constexpr int kLoadRegisters = (kPool * kThreads - kMathRegisters * kMathThreads) / kLoadThreads / 8 * 8;
  static constexpr int kSharedSlices = kHeadDim / kSlice;  // of Q, in shared memory: all
  static_assert(kGroups % kCluster == 0);
  static_assert(kLoad != Load::rows || kCluster == 1);
};

}  // namespace fovea::gpu::sm90::latent
