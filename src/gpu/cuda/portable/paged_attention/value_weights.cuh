// SPDX-License-Identifier: Apache-2.0
/// Probabilities times the scales of values, as MMAs take them: halves.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"

namespace fovea::gpu::portable::paged_attention {

/// The products of a row are divided by a power of two that follows the largest of them, as scales may have any size. `Lanes`: as in
/// softmax.cuh; score i belongs to row i / 2 % 2. `kFinite`: all scales are.
template <class Lanes, int kScores, bool kFinite>
class ValueWeights {
 public:
  float zeros[2];  // the lane's sums of weights times zero points

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      zeros[r] = 0;
      inverse[r] = 0x1p126f;
    }
  }

  /// Turns probabilities into weights. `scale_of(i)`: the scale of the value of p[i]. Returns whether accumulators need `rescale`, which
  /// the softmax has set if it has `grown`.
  template <class ScaleOf>
  __device__ __forceinline__ bool operator()(float (&p)[kScores], const ScaleOf& scale_of, bool grown, float (&rescale)[2]) {
    float most[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      p[i] = !kFinite && p[i] == 0 ? 0 : p[i] * scale_of(i);  // a hidden key's scale may be NaN
      most[i / 2 % 2] = fmaxf(most[i / 2 % 2], fabsf(p[i]));
    }
    const bool moved = Lanes::any(most[0] * inverse[0] > kMost || most[1] * inverse[1] > kMost) || grown;
    if (moved) follow(most, grown, rescale);
#pragma unroll
    for (int i = 0; i < kScores; ++i) p[i] *= inverse[i / 2 % 2];
    return moved;
  }

  /// The power of two by which the accumulators of row r are divided.
  __device__ __forceinline__ float power(int r) const { return __int_as_float(0x7f000000 - __float_as_int(inverse[r])); }

 private:
  static constexpr float kMost = 0x1p12f;  // halves end at 2^16

  __device__ __forceinline__ void follow(const float (&most)[2], bool grown, float (&rescale)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = (grown ? rescale[r] : 1) * power(r);
      const float largest = fmaxf(before, Lanes::largest_of_row(most[r]));
      const int exponent = min(max(__float_as_int(largest) >> 23, 1), 253);
      inverse[r] = __int_as_float((254 - exponent) << 23);
      rescale[r] = before * inverse[r];
      zeros[r] *= rescale[r];
    }
  }

  float inverse[2];
};

}  // namespace fovea::gpu::portable::paged_attention
