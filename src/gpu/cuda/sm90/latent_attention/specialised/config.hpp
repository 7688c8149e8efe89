// SPDX-License-Identifier: Apache-2.0
/// Threads and registers of four roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/tiles.hpp"

namespace fovea::gpu::sm90::latent {

template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
struct RolesBudget {
  static constexpr int kScoreThreads = 128, kLoadThreads = 128;
  static constexpr int kThreads = kMathThreads + kScoreThreads + kLoadThreads;
  static constexpr int kPool = 65536 / kThreads / 8 * 8;               // registers of each thread at launch, which the roles share
  static constexpr int kMathRegisters = 168;                           // with fewer, loop counters are spilled
  static constexpr int kScoreRegisters = kHeadDim == 576 ? 144 : 128;  // 512 columns: a slice of Q less
  static constexpr int kLoadRegisters =
      (kPool * kThreads - kMathRegisters * kMathThreads - kScoreRegisters * kScoreThreads) / kLoadThreads / 8 * 8;
  static constexpr int kSharedSlices = kHalfSlices;  // of Q, in shared memory; the score warpgroup has the others in registers
  static constexpr bool kTwoKinds = kRow == Row::v41_and_fp4;
  static_assert(kLoad == Load::codes && kCluster == 1);
};

}  // namespace fovea::gpu::sm90::latent
