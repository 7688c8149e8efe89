// SPDX-License-Identifier: Apache-2.0
/// The softmax of e4m3 queries and keys, whose scores are small but for large scales. Rows follow their
/// maximum in a few instructions.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu::sm90::dense {

template <int kScores>
struct E4m3Softmax : OnlineSoftmax<Warp, kScores, E4m3SumRange> {
  using Base = OnlineSoftmax<Warp, kScores, E4m3SumRange>;
  using Base::maximum, Base::sum, Base::rescale, Base::quick;

  /// As the base's.
  __device__ __forceinline__ bool operator()(float (&scores)[kScores], float scale, float zero) {
    float largest[2], offset[2];
    this->find_largest(scores, largest);
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = maximum[r] * scale;
      outgrown |= ((largest[r] - maximum[r]) * scale > E4m3SumRange::kSlack) | !is_plain(offset[r]);
    }
    const bool grown = Warp::any(outgrown);
    if (grown) grow(scores, scale, largest, offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = __fadd_rn(offset[r], -E4m3SumRange::kShift);
    const float factor[1] = {scale};
    this->exponentiate(scores, factor, offset, zero);
    return grown;
  }

 private:
  __device__ __forceinline__ void grow(float (&scores)[kScores], float scale, const float (&largest)[2], float (&offset)[2]) {
    float base[2];
    bool slow = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float to = followed(maximum[r], Warp::largest_of_row(largest[r]), scale, E4m3SumRange::kSlack);
      rescale[r] = rescale_factor<Warp>(maximum[r], to, scale);
      sum[r] *= rescale[r];
      maximum[r] = to;
      offset[r] = to * scale;
      const bool plain = is_plain(offset[r]);
      slow |= !plain | (offset[r] < -E4m3SumRange::kSlack);
      base[r] = plain | (to == -INFINITY) ? 0 : to;
      offset[r] = plain ? offset[r] : 0;
    }
    quick = !Warp::any(slow);
    if (!Warp::any(base[0] != 0 || base[1] != 0)) return;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] -= base[i / 2 % 2];
  }
};

}  // namespace fovea::gpu::sm90::dense
