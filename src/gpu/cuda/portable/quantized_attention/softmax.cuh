// SPDX-License-Identifier: Apache-2.0
/// Online softmax over sums of products of codes. Most tiles need no scores: the maximum is found in integers, and one multiply-add makes
/// an exponent of a sum.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/quantized_attention/scales.cuh"

namespace fovea::gpu::portable::quantized_attention {

/// An exponent is x * factor - offset, by row, where x is a sum or a score.
struct Exponents {
  float factor, offset[2];
};

template <int kScores>
struct SumSoftmax : OnlineSoftmax<Warp, kScores> {
  using Base = OnlineSoftmax<Warp, kScores>;
  using Base::exponentiate;

  /// Whether exponents follow from sums: no row of the warp outgrows its maximum, and the scale is an ordinary number above 0.
  __device__ __forceinline__ bool takes_sums(const int (&sums)[kScores], const ScoreScale& scale, Exponents& exponents) const {
    exponents.factor = scale.unit * scale.log2;
    bool takes = (exponents.factor >= FLT_MIN) & (exponents.factor < kPlain);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      exponents.offset[r] = this->maximum[r] * scale.log2;
      const float growth = (static_cast<float>(largest_of(sums, r)) * scale.unit - this->maximum[r]) * scale.log2;
      takes &= (growth <= kSlack) & is_plain(exponents.offset[r]);
    }
    return !Warp::any(!takes);
  }

  /// The maximum follows the scores where it must, and accumulators are to be multiplied by `rescale`.
  __device__ __forceinline__ void take_scores(float (&scores)[kScores], const ScoreScale& scale, Exponents& exponents) {
    float largest[2];
    this->quick = false;
    this->find_largest(scores, largest);
    this->grow(scores, scale.log2, largest, exponents.offset);
    exponents.factor = scale.log2;
  }

 private:
  static __device__ __forceinline__ int largest_of(const int (&sums)[kScores], int r) {
    int largest = sums[2 * r];
#pragma unroll
    for (int i = 0; i < kScores; i += 4) largest = __vimax3_s32(largest, sums[i + 2 * r], sums[i + 2 * r + 1]);
    return largest;
  }
};

}  // namespace fovea::gpu::portable::quantized_attention
