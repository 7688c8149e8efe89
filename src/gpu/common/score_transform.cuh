// SPDX-License-Identifier: Apache-2.0
/// The transform of a score: what becomes of a product q . k before the mask and the softmax. It scales and softcaps.
#pragma once

#include "gpu/common/softmax.cuh"

namespace fovea::gpu {

inline constexpr float kLeastScale = 0x1p-126f;

/// A factor above 0 and finite: minus infinity times it stays so, and 0 times it stays 0. NaN stays NaN.
__device__ inline float clamped_scale(float scale) {
  constexpr float kMost = 0x1.fffffep127f;
  return scale < kLeastScale ? kLeastScale : scale > kMost ? kMost : scale;
}

/// tanh(x) = 1 - 2 / (exp(2 x) + 1), where `twice_log2` is 2 x log2(e). The error is 2^-23 for every x, so it is relative for large ones
/// alone. `Lanes`: as in softmax.cuh.
template <class Lanes>
__device__ inline float tanh_by_exp2(float twice_log2) {
  return 1 - Lanes::quotient(2, Lanes::exp2(twice_log2) + 1);
}

/// softcap * tanh(product * scale / softcap), with an error that is relative for every score and any softcap.
struct Softcap {
  float scale, cap;
  float inv_cap;  // 2 log2(e) scale / cap; 0 where that underflows

  struct Capped {
    float score, tanh;
  };
  template <class Lanes>
  __device__ Capped operator()(float product) const {
    constexpr float kHalfLn2 = 0.5f * kLn2, kSmall = 0.125f;
    const float twice_log2 = product * inv_cap, t = twice_log2 * kHalfLn2, square = t * t;
    // Taylor's series, whose next term is below 2^-29 of the sum. A score times a number near 1 bears any cap.
    const float near_one = fmaf(square, fmaf(square, fmaf(square, -17.0f / 315, 2.0f / 15), -1.0f / 3), 1.0f);
    const float large = tanh_by_exp2<Lanes>(twice_log2);
    const bool small = fabsf(t) < kSmall;
    return {small ? product * scale * near_one : cap * large, small ? t * near_one : large};
  }
};

/// Most calls need no transform: the softmax multiplies products by `scale_log2` itself.
template <class Lanes>
struct ScoreTransform {
  float scale, softcap, inv_softcap;  // inv_softcap: 2 log2(e) scale / softcap
  float scale_log2;                   // factor of the scores in the softmax; includes log2(e)
  bool enabled;                       // there is a softcap, or `scale` is negative, NaN or too large to include log2(e)

  /// From factors that only a kernel knows, such as a cache's scales.
  static __device__ ScoreTransform make(float scale, float softcap, float inv_softcap) {
    constexpr float kMost = 0x1.fffffep127f;
    const bool enabled = softcap != 0 || !(scale >= 0 && scale * kLog2e <= kMost);
    const float finite = inv_softcap < -kMost ? -kMost : inv_softcap > kMost ? kMost : inv_softcap;
    // clamped_scale would compare with kMost again, which spills where registers are short.
    return {scale, softcap, finite, enabled ? kLog2e : fmaxf(scale * kLog2e, kLeastScale), enabled};
  }

  __device__ __forceinline__ float operator()(float product) const {
    if (!enabled) return product;
    return softcap == 0 ? product * scale : capped(product);
  }
  template <int kCount>
  __device__ __forceinline__ void operator()(float (&products)[kCount]) const {
    if (!enabled) return;
    if (softcap == 0) {
#pragma unroll
      for (float& x : products) x *= scale;
    } else {
#pragma unroll
      for (float& x : products) x = capped(x);
    }
  }

 private:
  __device__ __forceinline__ float capped(float product) const {
    return Softcap{scale, softcap, inv_softcap}.template operator()<Lanes>(product).score;
  }
};

}  // namespace fovea::gpu
