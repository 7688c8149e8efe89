// SPDX-License-Identifier: Apache-2.0
/// A kernel of attention/ over pages: its tiles, with other parameters, and keys that a block table names.
#pragma once

#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/paged_attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {

struct Params;  // params.hpp
template <class Element>
struct PagedKeys;  // exact_keys.cuh

/// The slices of eight rows follow one another, so that a TMA box holds all of a page.
template <class Element_, int kTuning_, bool kTransform_>
struct Config : attention::Config<Element_, kTuning_, kTransform_> {
  using Base = attention::Config<Element_, kTuning_, kTransform_>;
  using Params = paged_attention::Params;
  using Keys = PagedKeys<Element_>;
  static constexpr int kKeySliceStep = kGroupRows * kSliceBytes;
  static constexpr int kKeyGroupBytes = Base::kSlicesQk * kKeySliceStep, kValueGroupBytes = Base::kSlicesV * kKeySliceStep;
  static_assert(sizeof(Element_) == 2);
  static_assert(Base::kKeyTile % kGroupRows == 0 && Base::kKeyTile <= 32 * kGroupRows);  // a lane for each box
};

}  // namespace fovea::gpu::sm90::paged_attention
