// SPDX-License-Identifier: Apache-2.0
/// Constants of the forward kernel for wide heads. Its code is that of gpu/cuda/sm90/attention.
#pragma once

#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/wide_attention/tuning.hpp"

namespace fovea::gpu::sm90::wide_attention {

/// kTransform_: scores are softcapped, or their scale is negative.
template <class Element, int kRow, bool kTransform_>
struct Config : attention::TileConfig<Element, Element, Tuning(kTunings[kRow])> {
  using Params = dense::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  using Result = Element;
  static constexpr bool k8Bit = false, kOwnScale = false;
  static constexpr bool kTransform = kTransform_;
  static constexpr bool kOwnEdges = !kTunings[kRow].overlap;  // warpgroups find their own masked key tiles
  static constexpr bool kTickets = true;
};

}  // namespace fovea::gpu::sm90::wide_attention
