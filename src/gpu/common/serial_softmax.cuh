// SPDX-License-Identifier: Apache-2.0
/// Online softmax over the scores of one row, one after another, all lanes together.
#pragma once

#include "gpu/common/softmax.cuh"

namespace fovea::gpu {

/// `Lanes`: as in softmax.cuh.
template <class Lanes>
struct SerialSoftmax {
  float scale_log2;  // of scores; includes log2(e)
  float maximum = -INFINITY, sum = 0;

  /// The weight of a score. Where the maximum follows it, `columns` are rescaled, as sums of values times weights.
  template <int kCount>
  __device__ __forceinline__ float operator()(float score, float (&columns)[kCount]) {
    if (score > maximum) {
      const float rescale = rescale_factor<Lanes>(maximum, score, scale_log2);
      sum *= rescale;
#pragma unroll
      for (float& x : columns) x *= rescale;
      maximum = score;
    }
    const float weight = Lanes::exp2((score - maximum) * scale_log2);
    sum += weight;
    return weight;
  }
};

}  // namespace fovea::gpu
