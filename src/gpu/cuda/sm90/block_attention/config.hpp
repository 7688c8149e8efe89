// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel for block masks, and its launch. Its code is that of gpu/cuda/sm90/dense.
#pragma once

#include "gpu/cuda/common/block_lists.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/block_attention/tuning.hpp"

namespace fovea::gpu {
template <int kStages>
struct ListedStages;  // gpu/cuda/common/block_lists.cuh
}  // namespace fovea::gpu

namespace fovea::gpu::sm90::block_attention {

struct Params : dense::Params {
  BlockLists lists{};
};

/// kTransform_: scores are softcapped, or their scale is negative.
template <class Element_, int kRow, bool kTransform_>
struct Config : attention::TileConfig<Element_, Element_, Tuning(kTunings[kRow])> {
  using Element = Element_;
  using Params = block_attention::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  using Result = Element;
  using WorkTileData = ListedStages<kTunings[kRow].key_stages>;
  static constexpr bool k8Bit = false, kOwnScale = false, kOwnEdges = false;
  static constexpr bool kTransform = kTransform_;
  static constexpr bool kTickets = true, kLists = true;
  static_assert(kTunings[kRow].overlap);  // elsewhere warpgroups skip key tiles by their numbers
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_listed(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::block_attention
