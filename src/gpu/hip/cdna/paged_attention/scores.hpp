// SPDX-License-Identifier: Apache-2.0
/// What becomes of a product of q and k before the mask, and the base of the softmax.
#pragma once

#include "gpu/common/softcap.cuh"
#include "gpu/hip/cdna/paged_attention/work.hpp"
#include "gpu/hip/cdna/softmax.hpp"

namespace fovea::gpu::cdna::paged_attention {

class Scores {
 public:
  __device__ Scores(const Params& params, int kv_head) : softcap(params.softcap) {
    scale = params.scale * (params.k_scale == nullptr ? 1.0f : params.k_scale[kv_head * params.k_scale_stride]);
    transforms = softcap != 0 || !(scale > 0 && scale * kLog2e <= kMost);
    inv_softcap = softcap == 0 ? 0 : finite(2 * kLog2e * (scale / softcap));
  }

  /// Of scores as `transformed` leaves them. It is above 0, so that minus infinity stays so, and finite.
  __device__ float scale_log2() const { return transforms ? kLog2e : std::max(scale * kLog2e, 0x1p-126f); }

  __device__ __forceinline__ float transformed(float score) const {
    if (!transforms) return score;
    return softcap == 0 ? score * scale : Softcap{scale, softcap, inv_softcap}.operator()<Wave>(score).score;
  }
  template <int kCount>
  __device__ __forceinline__ void transform(float (&scores)[kCount]) const {
    if (!transforms) return;
#pragma unroll
    for (float& score : scores) score = transformed(score);
  }

 private:
  static constexpr float kMost = 0x1.fffffep127f;
  static __device__ float finite(float x) { return std::min(std::max(x, -kMost), kMost); }

  float softcap, scale, inv_softcap;
  bool transforms;  // scores are softcapped, or their scale is not above 0, or too large to include log2(e)
};

}  // namespace fovea::gpu::cdna::paged_attention
