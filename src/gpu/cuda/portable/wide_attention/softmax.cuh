// SPDX-License-Identifier: Apache-2.0
/// Online softmax over scores that the warps of a row group share: each has some columns of the
/// same rows.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/wide_attention/params.hpp"

namespace fovea::gpu::portable::wide_attention {

__device__ __forceinline__ ScoreTransform<Warp> score_transform(const Params& params) {
  return {params.scale, params.softcap, params.inv_softcap, params.transform ? kLog2e : params.scale_log2, params.transform};
}

template <int kScores>
struct SharedSoftmax : OnlineSoftmax<Warp, kScores> {
  using Base = OnlineSoftmax<Warp, kScores>;
  using Base::maximum;

  /// Largest scores of the lane's rows in this warp's columns.
  __device__ __forceinline__ void largest_of_warp(const float (&scores)[kScores], float (&largest)[2]) const {
    this->find_largest(scores, largest);
#pragma unroll
    for (float& x : largest) x = Warp::largest_of_row(x);
  }

  /// OnlineSoftmax::operator(), given the largest scores of all warps. Each warp decides alike.
  __device__ __forceinline__ bool take(float (&scores)[kScores], const float (&largest)[2], float scale, float zero) {
    float offset[2];
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = maximum[r] * scale;
      outgrown |= ((largest[r] - maximum[r]) * scale > kSlack) | !is_plain(offset[r]);
    }
    const bool grown = Warp::any(outgrown);
    if (grown) this->grow(scores, scale, largest, offset);
    const float factor[1] = {scale};
    this->exponentiate(scores, factor, offset, zero);
    this->quick = false;
    return grown;
  }
};

}  // namespace fovea::gpu::portable::wide_attention
