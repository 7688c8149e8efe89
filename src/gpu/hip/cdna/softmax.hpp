// SPDX-License-Identifier: Apache-2.0
/// Online softmax where a lane holds scores of one row, and four lanes share it. The rules are those of gpu/common/softmax.cuh.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/hip/cdna/wave.hpp"

namespace fovea::gpu::cdna {

struct RowSoftmax {
  float maximum = -INFINITY;  ///< of the row, unscaled
  float sum = 0;              ///< the lane's share, until `reduce_sum`

  /// Scores become probabilities, unrounded, and join the sum. Returns whether a row of the wave has a new maximum: accumulators are to be
  /// multiplied by `rescale` then.
  template <int kScores>
  __device__ __forceinline__ bool operator()(float (&scores)[kScores], float scale, float& rescale) {
    float largest = scores[0];
#pragma unroll
    for (int i = 1; i < kScores; ++i) largest = fmaxf(largest, scores[i]);
    float offset = maximum * scale;
    const bool grown = any(((largest - maximum) * scale > kSlack) | !is_plain(offset));
    if (grown) rescale = grow(scores, scale, largest, offset);
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] = exp2(fmaf(scores[i], scale, -offset));
    float shares[2] = {0, 0};  // two chains
#pragma unroll
    for (int i = 0; i < kScores; ++i) shares[i % 2] += scores[i];
    sum += shares[0] + shares[1];
    return grown;
  }

  __device__ __forceinline__ void reduce_sum() { sum = sum_of_row(sum); }

 private:
  template <int kScores>
  __device__ __forceinline__ float grow(float (&scores)[kScores], float scale, float largest, float& offset) {
    const float to = followed(maximum, largest_of_row(largest), scale);
    const float rescale = rescale_factor<Wave>(maximum, to, scale);
    sum *= rescale;
    maximum = to;
    offset = to * scale;
    const bool plain = is_plain(offset);
    const float base = plain | (to == -INFINITY) ? 0 : to;
    offset = plain ? offset : 0;
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] -= base;
    return rescale;
  }
};

}  // namespace fovea::gpu::cdna
