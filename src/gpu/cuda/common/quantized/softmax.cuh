// SPDX-License-Identifier: Apache-2.0
/// Online softmax over integer scores. Most tiles need no scores: the maximum is found in integers, and one multiply-add makes
/// an exponent of a sum.
#pragma once

#include <cfloat>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/common/warp.cuh"

namespace fovea::gpu {

/// An exponent is x * factor - offset: by block of keys and by row, where x is a sum or a score.
template <int kBlocks>
struct Exponents {
  float factor[kBlocks], offset[2];
};

/// A lane has equal parts of kBlocks blocks of keys, each with a `unit`: a sum times it is a score. `log2`: scale of scores.
template <int kScores, int kBlocks = 1, class Range = FloatRange>
struct SumSoftmax : OnlineSoftmax<Warp, kScores, Range> {
  using Base = OnlineSoftmax<Warp, kScores, Range>;
  using Base::exponentiate;

  /// Whether exponents follow from sums: no row of the warp outgrows its maximum, and the scales are ordinary numbers above 0.
  __device__ __forceinline__ bool takes_sums(const int (&sums)[kScores], const float (&unit)[kBlocks], float log2,
                                             Exponents<kBlocks>& exponents) const {
    bool takes = true;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      exponents.factor[b] = unit[b] * log2;
      takes &= (exponents.factor[b] >= FLT_MIN) & (exponents.factor[b] < kPlain);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = this->maximum[r] * log2;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const float growth = (static_cast<float>(largest_of(sums, b, r)) * unit[b] - this->maximum[r]) * log2;
        takes &= growth <= Range::kSlack;
      }
      takes &= fabsf(offset) < kMostOffset;
      exponents.offset[r] = shifted(offset);
    }
    return !Warp::any(!takes);
  }

  /// Whether exponents follow from sums where a row may outgrow its maximum: then the maximum follows, and accumulators are to be
  /// multiplied by `rescale`. Hidden keys have kHidden, whose probability is 0.
  __device__ __forceinline__ bool follows_sums(const int (&sums)[kScores], const float (&unit)[kBlocks], float log2,
                                               Exponents<kBlocks>& exponents) {
    constexpr float kHiddenSum = kHidden<int>, kNothing = -256;  // 2^kNothing is 0
    bool takes = true;
    float to[2];
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) exponents.factor[b] = unit[b] * log2;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float largest = -INFINITY;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        const float sum = static_cast<float>(largest_of(sums, b, r));
        largest = fmaxf(largest, sum == kHiddenSum ? -INFINITY : sum * unit[b]);
      }
      to[r] = followed(this->maximum[r], Warp::largest_of_row(largest), log2, Range::kSlack);
      const float offset = to[r] == -INFINITY ? 0 : to[r] * log2;
      exponents.offset[r] = shifted(offset);
      takes &= fabsf(offset) < kMostOffset;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        takes &= (exponents.factor[b] < kPlain) & (fmaf(exponents.factor[b], kHiddenSum, fabsf(offset)) < kNothing);
      }
    }
    if (Warp::any(!takes)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      this->rescale[r] = rescale_factor<Warp>(this->maximum[r], to[r], log2);
      this->sum[r] *= this->rescale[r];
      this->maximum[r] = to[r];
    }
    return true;
  }

  /// The maximum follows the scores where it must, and accumulators are to be multiplied by `rescale`.
  __device__ __forceinline__ void take_scores(float (&scores)[kScores], float log2, Exponents<kBlocks>& exponents) {
    float largest[2];
    this->quick = false;
    this->find_largest(scores, largest);
    this->grow(scores, log2, largest, exponents.offset);
#pragma unroll
    for (int r = 0; r < 2; ++r) exponents.offset[r] = shifted(exponents.offset[r]);
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) exponents.factor[b] = log2;
  }

 private:
  /// An exponent of a sum is off by some 2^-22 of the maximum's. A range that ends soon has no room for much of it.
  static constexpr float kMostOffset = Range::kShift == 0 ? kPlain : 1 << 18;

  static __device__ __forceinline__ float shifted(float offset) {
    if constexpr (Range::kShift == 0) return offset;
    return __fadd_rn(offset, -Range::kShift);
  }
  static __device__ __forceinline__ int largest_of(const int (&sums)[kScores], int block, int r) {
    constexpr int kPart = kScores / kBlocks;
    int largest = sums[block * kPart + 2 * r];
#pragma unroll
    for (int i = block * kPart; i < (block + 1) * kPart; i += 4) largest = __vimax3_s32(largest, sums[i + 2 * r], sums[i + 2 * r + 1]);
    return largest;
  }
};

}  // namespace fovea::gpu
