// SPDX-License-Identifier: Apache-2.0
/// What becomes of a score before the mask, where the call has a softcap or a negative scale.
#pragma once

#include "gpu/common/softcap.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/attention/params.hpp"

namespace fovea::gpu::portable::attention {

__device__ inline float capped(const Params& params, float product) {
  return Softcap{params.scale, params.softcap, params.inv_softcap}.operator()<Warp>(product).score;
}

/// What becomes of any score.
__device__ inline float transformed(const Params& params, float score) {
  if (!params.transform) return score;
  return params.softcap == 0 ? score * params.scale : capped(params, score);
}

}  // namespace fovea::gpu::portable::attention
