// SPDX-License-Identifier: Apache-2.0
/// Compile-time constants of the kernels: threads, registers, and the instance that a launch names.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/tuning.hpp"

namespace fovea::gpu::sm90::latent {

/// Threads and registers of the pingpong kernel.
template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
struct PingpongBudget {
  static constexpr bool kGathered = kLoad != Load::tma;
  static constexpr bool kStages = kLoad == Load::gather;  // whether whole results may leave through the odd tile
  /// Decoded keys are late: the odd tiles' warpgroup multiplies the even tile's P V, which frees a stage, before it waits for the second
  /// half of its own keys.
  static constexpr bool kEvenFirst = kLoad == Load::quantised;
  static constexpr int kLoadThreads = kLoad == Load::quantised && kCluster == 1 ? 256 : 128;
  static constexpr int kThreads = kMathThreads + kLoadThreads;
  static constexpr int kPool = 65536 / kThreads / 8 * 8;  // registers of each thread at launch, which the roles share
  static constexpr bool kWideMmas = kPool >= 158;         // ptxas wants as many for an MMA of 256 columns: 128 accumulators and some
  static constexpr int kMathRegisters = kLoad == Load::quantised ? 192 : 216;
  static constexpr int kLoadRegisters = (kPool * kThreads - kMathRegisters * kMathThreads) / kLoadThreads / 8 * 8;
  static constexpr int kSharedSlices = kHeadDim / kSlice;  // of Q, in shared memory: all
  static_assert(kGroups % kCluster == 0);
  static_assert(kLoad != Load::gather || kCluster == 1);
};

/// Threads and registers of the specialised kernel.
template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
struct SpecialisedBudget {
  static constexpr int kScoreThreads = 128, kLoadThreads = 128;
  static constexpr int kThreads = kMathThreads + kScoreThreads + kLoadThreads;
  static constexpr int kPool = 65536 / kThreads / 8 * 8;               // registers of each thread at launch, which the roles share
  static constexpr int kMathRegisters = 168;                           // with fewer, loop counters are spilled
  static constexpr int kScoreRegisters = kHeadDim == 576 ? 144 : 128;  // 512 columns: a slice of Q less
  static constexpr int kLoadRegisters =
      (kPool * kThreads - kMathRegisters * kMathThreads - kScoreRegisters * kScoreThreads) / kLoadThreads / 8 * 8;
  static constexpr int kSharedSlices = kHalfSlices;  // of Q, in shared memory; the score warpgroup has the others in registers
  static constexpr bool kTwoKinds = kRow == Row::v41_and_fp4;
  static_assert(kLoad == Load::quantised && kCluster == 1);
};

template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
using Budget = std::conditional_t<kernel_of(kLoad, kRow) == Kernel::specialised, SpecialisedBudget<kHeadDim, kCluster, kLoad, kRow>,
                                  PingpongBudget<kHeadDim, kCluster, kLoad, kRow>>;

/// kRow_ is the kind of rows of all caches, for quantised loads. kEdges_: rows of a tile may see different keys; the instructions for that
/// slow down other calls.
template <class Element_, int kHeadDim_, int kCluster_, Load kLoad_, Row kRow_ = Row::any, bool kEdges_ = false>
struct Config : Budget<kHeadDim_, kCluster_, kLoad_, kRow_> {
  using Element = Element_;
  static constexpr Kernel kKernel = kernel_of(kLoad_, kRow_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCluster = kCluster_;  // CTAs that share each key tile; each loads some of the keys for all
  static constexpr Load kLoad = kLoad_;
  static constexpr Row kRow = kRow_;
  static constexpr bool kEdges = kEdges_;
  static constexpr bool kLists = kLoad != Load::tma && kRow != Row::e4m3;  // whether queries may list their tokens
  static constexpr int kSlices = kHeadDim / kSlice;
  static constexpr bool kRopeBecomesP = kSlices == kKeySlices;  // else the ninth slice is P's alone
  static constexpr int kQueryGroup = Config::kSharedSlices * 1024;
  static_assert(kHeadDim == 576 || kHeadDim == 512);
  static_assert(!kEdges || kLoad != Load::quantised || kRow == Row::any);
};

/// The shared memory of a CTA, defined in the kernel's own folder.
template <class Config, Kernel = Config::kKernel>
struct Storage;

/// Named barriers of both kernels. 0 is that of the whole CTA.
enum : int { kWarpgroup = 4 };  // and 5: all threads of one warpgroup arrive and wait

}  // namespace fovea::gpu::sm90::latent
