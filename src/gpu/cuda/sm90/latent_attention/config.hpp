// SPDX-License-Identifier: Apache-2.0
/// Constants of a kernel that follow from one another.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/pingpong/config.hpp"
#include "gpu/cuda/sm90/latent_attention/specialised/config.hpp"
#include "gpu/cuda/sm90/latent_attention/tuning.hpp"

namespace fovea::gpu::sm90::latent {

template <int kHeadDim, int kCluster, Load kLoad, Row kRow>
using Budget = std::conditional_t<kernel_of(kLoad, kRow) == Kernel::specialised, RolesBudget<kHeadDim, kCluster, kLoad, kRow>,
                                  TurnsBudget<kHeadDim, kCluster, kLoad, kRow>>;

/// kRow_: of all caches; only Load::codes reads it.
/// kEdges_: rows of a tile may see different keys. The code for that slows down calls in which they never do.
template <class Element_, int kHeadDim_, int kCluster_, Load kLoad_, Row kRow_ = Row::any, bool kEdges_ = false>
struct Config : Budget<kHeadDim_, kCluster_, kLoad_, kRow_> {
  using Element = Element_;
  static constexpr Kernel kKernel = kernel_of(kLoad_, kRow_);
  static constexpr int kHeadDim = kHeadDim_;
  static constexpr int kCluster = kCluster_;  // CTAs that share each key tile; each loads a part of the keys for all
  static constexpr Load kLoad = kLoad_;
  static constexpr Row kRow = kRow_;
  static constexpr bool kEdges = kEdges_;
  static constexpr bool kLists = kLoad != Load::boxes && kRow != Row::e4m3;  // whether queries may list their tokens
  static constexpr int kSlices = kHeadDim / kSlice;
  static constexpr bool kRopeBecomesP = kSlices == kKeySlices;  // else the ninth slice is P's alone
  static constexpr int kQueryGroup = Config::kSharedSlices * 1024;
  static_assert(kHeadDim == 576 || kHeadDim == 512);
  static_assert(!kEdges || kLoad != Load::codes || kRow == Row::any);
};

}  // namespace fovea::gpu::sm90::latent
