// SPDX-License-Identifier: Apache-2.0
/// Online softmax over a lane's scores of a tile. A lane has two rows; score i belongs to row i / 2 % 2.
///
/// The maximum of a row is an unscaled score, -INFINITY before the first key. Probabilities are 2^(score * scale - maximum *
/// scale), where `scale` includes log2(e). The maximum is updated only when a score exceeds it by more than 2^kSlack, so
/// accumulators are rarely rescaled; sums and probabilities share the factor.
///
/// Below kPlain the exponent is one multiply-add: the rounding of maximum * scale is the same for all keys of a row and
/// cancels. From kPlain on that rounding would overflow 2^x, so the maximum is subtracted from the scores first.
#pragma once

namespace fovea::gpu {

inline constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;
inline constexpr float kSlack = 8.0f;  // log2 of the growth without an update of the maximum
inline constexpr float kPlain = 1 << 24;

__device__ inline bool is_plain(float offset) { return fabsf(offset) < kPlain; }

/// Factor from results relative to the maximum `from` to results relative to `to`, which is not lower. It has no branch, as
/// wgmma overlaps it.
template <class Lanes>
__device__ inline float rescale_factor(float from, float to, float scale) {
  const float before = from * scale, after = to * scale;
  const float exponent = is_plain(before) & is_plain(after) ? before - after : (from - to) * scale;
  return Lanes::exp2(from == to ? 0 : exponent);  // also for infinities
}

/// The updated maximum of a row whose largest score is `largest`.
__device__ inline float followed(float maximum, float largest, float scale, float slack = kSlack) {
  return (largest - maximum) * scale > slack ? largest : maximum;
}

/// lse in base 2 of a sum relative to 2^base.
__device__ inline float lse_of(float sum, float base) { return sum == 0 ? -INFINITY : base + log2f(sum); }

/// Range of probabilities: 2^kShift at the maximum, up to 2^(kShift + kSlack) before the maximum follows.
struct FloatRange {
  static constexpr float kShift = 0, kSlack = gpu::kSlack;
};
/// e4m3 ends at 448 = 2^8.8 and has its last full digit at 2^-6. Exponents from integer scores have an error of at most 0.06.
struct E4m3SumRange {
  static constexpr float kShift = 6, kSlack = 2.7f;
};

/// `Lanes`: the operations of a warp on rows of accumulators, such as Warp of gpu/cuda/common/warp.cuh.
template <class Lanes, int kScores, class Range = FloatRange>
struct OnlineSoftmax {
  float maximum[2];  // of the lane's two rows
  float sum[2];      // the lane's share
  float rescale[2];  // factor of the accumulators, if operator() returns true
  bool quick;        // the same for the warp: only scores above 0 can exceed the maximum of their row by the slack

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -INFINITY;
      sum[r] = 0;
    }
    quick = false;
  }

  /// Turns scores into unrounded probabilities and adds them to the sum. Returns whether the warp's accumulators need
  /// `rescale`. `zero` is 0, unknown to the compiler.
  __device__ __forceinline__ bool operator()(float (&scores)[kScores], float scale, float zero) {
    float largest[2], offset[2];
    find_largest(scores, largest);
    bool outgrown = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      offset[r] = maximum[r] * scale;
      outgrown |= ((largest[r] - maximum[r]) * scale > Range::kSlack) | !is_plain(offset[r]);
    }
    const bool grown = Lanes::any(outgrown);
    if (grown) grow(scores, scale, largest, offset);
    if constexpr (Range::kShift != 0) {
#pragma unroll
      for (int r = 0; r < 2; ++r) offset[r] = __fadd_rn(offset[r], -Range::kShift);
    }
    const float factor[1] = {scale};
    exponentiate(scores, factor, offset, zero);
    return grown;
  }

  /// Sums are relative to 2^base.
  __device__ __forceinline__ float base(int r, float scale) const {
    if constexpr (Range::kShift == 0) return maximum[r] * scale;
    return __fadd_rn(__fmul_rn(maximum[r], scale), -Range::kShift);
  }
  /// The probability at the maximum: 2^kShift, up to the rounding of `base`.
  __device__ __forceinline__ float top(int r, float scale) const {
    return Lanes::exp2(is_plain(maximum[r] * scale) ? fmaf(maximum[r], scale, -base(r, scale)) : Range::kShift);
  }

  /// Leaves the whole sum of its rows in each lane.
  __device__ __forceinline__ void reduce_sum() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = Lanes::sum_of_row(sum[r]);
  }

 protected:
  /// Largest score of each row in the lane's columns. With `quick` and no score above 0 it may be lower: such rows do not grow.
  __device__ __forceinline__ void find_largest(const float (&scores)[kScores], float (&largest)[2]) const {
    largest[0] = scores[0];
    largest[1] = scores[2];
    if (quick) {
#pragma unroll
      for (int i = 0; i < kScores; i += 2) {
        float& x = largest[i / 2 % 2];
        x = Lanes::largest_of_three(x, scores[i], scores[i + 1]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kScores; ++i) largest[i / 2 % 2] = fmaxf(largest[i / 2 % 2], scores[i]);
    }
  }

  /// Works in pieces, each of which depends on an exponential of the previous one. Otherwise the compiler issues all
  /// multiply-adds first, and the unit for exponentials idles. Each of kFactors equal ranges of scores has its factor.
  template <int kFactors>
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores], const float (&factor)[kFactors], float (&offset)[2], float zero) {
    constexpr int kPiece = 16;
#pragma unroll
    for (int begin = 0; begin < kScores; begin += kPiece) {
#pragma unroll
      for (int i = begin; i < begin + kPiece && i < kScores; ++i) {
        scores[i] = Lanes::exp2(fmaf(scores[i], factor[i * kFactors / kScores], -offset[i / 2 % 2]));
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) offset[r] = fmaf(scores[begin + 2 * r], zero, offset[r]);
    }
    // Sums follow all exponentials, as each addition would wait for its own. Each row has two chains.
    float more[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kScores; ++i) (i % 2 == 0 ? sum : more)[i / 2 % 2] += scores[i];
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += more[r];
  }

  __device__ __forceinline__ void grow(float (&scores)[kScores], float scale, const float (&largest)[2], float (&offset)[2]) {
    float base[2];
    bool slow = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float to = followed(maximum[r], Lanes::largest_of_row(largest[r]), scale, Range::kSlack);
      rescale[r] = rescale_factor<Lanes>(maximum[r], to, scale);
      sum[r] *= rescale[r];
      maximum[r] = to;
      offset[r] = to * scale;
      const bool plain = is_plain(offset[r]);
      slow |= !plain | (offset[r] < -Range::kSlack);
      base[r] = plain | (to == -INFINITY) ? 0 : to;
      offset[r] = plain ? offset[r] : 0;
    }
    quick = !Lanes::any(slow);
#pragma unroll
    for (int i = 0; i < kScores; ++i) scores[i] -= base[i / 2 % 2];
  }
};

/// Online softmax over the scores of one row, one by one, in all lanes together.
template <class Lanes>
struct SerialSoftmax {
  float scale_log2;  // of scores; includes log2(e)
  float maximum = -INFINITY, sum = 0;

  /// Returns the weight of a score. If it is the new maximum, rescales `columns`, the sums of values times weights.
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
