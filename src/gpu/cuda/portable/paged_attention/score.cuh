// SPDX-License-Identifier: Apache-2.0
/// What becomes of a product of a query and a key.
#pragma once

#include <cfloat>

#include "gpu/common/softcap.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {

/// Of one kv head: the scale of the keys joins that of the scores.
struct Score {
  float scale, softcap, inv_softcap;
  float scale_log2;  // of scores as they enter the softmax; includes log2(e)
  bool transform;    // scores are softcapped, or their scale is negative, not a number, or too large to include log2(e)

  __device__ Score(const Params& params, int kv_head) {
    const float of_keys = params.k.scale == nullptr ? 1.0f : params.k.scale[kv_head * params.k.scale_stride];
    scale = params.scale * of_keys;
    softcap = params.softcap;
    inv_softcap = params.inv_softcap * of_keys;
    if (fabsf(inv_softcap) > FLT_MAX) inv_softcap = copysignf(FLT_MAX, inv_softcap);  // finite, too; NaN stays
    transform = softcap != 0 || !(scale >= 0 && scale * kLog2e <= FLT_MAX);
    // Above 0, so that minus infinity stays so; finite, so that 0 stays 0.
    scale_log2 = transform ? kLog2e : fmaxf(scale * kLog2e, FLT_MIN);
  }

  /// Of products that are to be transformed.
  template <int kCount>
  __device__ __forceinline__ void operator()(float (&products)[kCount]) const {
    if (softcap == 0) {
#pragma unroll
      for (float& x : products) x *= scale;
    } else {
#pragma unroll
      for (float& x : products) x = capped(x);
    }
  }
  __device__ __forceinline__ float operator()(float product) const {
    if (!transform) return product;
    return softcap == 0 ? product * scale : capped(product);
  }

 private:
  __device__ __forceinline__ float capped(float product) const {
    return Softcap{scale, softcap, inv_softcap}.operator()<Warp>(product).score;
  }
};

}  // namespace fovea::gpu::portable::paged_attention
