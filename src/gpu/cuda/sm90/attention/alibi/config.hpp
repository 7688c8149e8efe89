// SPDX-License-Identifier: Apache-2.0
/// Constants of the forward kernel with ALiBi, its parameters and its launch. Its code is that of gpu/cuda/sm90/dense.
#pragma once

#include "gpu/cuda/sm90/attention/alibi/tuning.hpp"
#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/dense/alibi.hpp"

namespace fovea::gpu::sm90::dense {
template <class Element, int kKeys>
struct KeyNumbers;  // alibi.cuh
}  // namespace fovea::gpu::sm90::dense

namespace fovea::gpu::sm90::attention::alibi {

struct Params : dense::Params {
  dense::AlibiParams alibi{};
};

template <class Element_, int kRow>
struct Config : TileConfig<Element_, Element_, Tuning(kTunings[kRow])> {
  using Element = Element_;
  using Params = alibi::Params;
  using Keys = dense::TensorKeys<Element, Params>;
  using Result = Element;
  using FirstData = dense::KeyNumbers<Element, kTunings[kRow].key_tile>;
  static constexpr bool kAlibi = true;
  static constexpr bool k8Bit = false, kOwnScale = false, kTransform = false;  // kTransform: Params::alibi.natural instead
  static constexpr bool kOwnEdges = !kTunings[kRow].overlap;
  static constexpr bool kTickets = true, kShortFirst = short_tile_first(kTunings[kRow], false);
};

/// The launch of a kernel, which the build instantiates for the rows of tuning.hpp.
template <class Config>
CudaStatus launch_with_alibi(const Params& params, int ctas, int ordinal, Stream stream);

}  // namespace fovea::gpu::sm90::attention::alibi
