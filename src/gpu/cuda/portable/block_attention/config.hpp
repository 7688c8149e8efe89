// SPDX-License-Identifier: Apache-2.0
/// Constants of the kernel for block masks. Its code is that of gpu/cuda/portable/attention.
#pragma once

#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/block_attention/tuning.hpp"

namespace fovea::gpu::portable::block_attention {

template <class Element, int kIndex>
struct Config : attention::TunedConfig<Element, Tuning(kTunings[kIndex])> {
  static constexpr bool kLists = true;
};

}  // namespace fovea::gpu::portable::block_attention
