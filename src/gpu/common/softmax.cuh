// SPDX-License-Identifier: Apache-2.0
/// Online softmax over the scores that a lane holds of a tile: two rows, of which score i belongs to row i / 2 % 2.
///
/// The maximum of a row is a score as the product leaves it, unscaled; -INFINITY while the row has seen nothing. Probabilities are powers
/// of two relative to it: 2^(score * scale - maximum * scale), where `scale` includes log2(e). The maximum follows a row only when the row
/// outgrows it by 2^kSlack, so that accumulators are rarely rescaled (sums and probabilities hold the factor).
///
/// Below kPlain the exponent is one multiply-add: the rounding of maximum * scale is the same for all keys of a row and cancels. From
/// there on it would exceed what a float holds as a power of two, so the maximum is subtracted from the scores first.
#pragma once

namespace fovea::gpu {

inline constexpr float kLog2e = 1.44269504088896341f, kLn2 = 0.693147180559945309f;
inline constexpr float kSlack = 8.0f;  // log2 of the growth that a maximum ignores
inline constexpr float kPlain = 1 << 24;

__device__ inline bool is_plain(float offset) { return fabsf(offset) < kPlain; }

/// Factor of all that is relative to the maximum `from`, to be relative to `to`, which is not lower. It has no branch, like all that lanes
/// do beside warpgroup products.
template <class Lanes>
__device__ inline float rescale_factor(float from, float to, float scale) {
  const float before = from * scale, after = to * scale;
  const float exponent = is_plain(before) & is_plain(after) ? before - after : (from - to) * scale;
  return Lanes::exp2(from == to ? 0 : exponent);  // of infinities too
}

/// The maximum of a row whose largest score is `largest`: it follows when the row outgrows it.
__device__ inline float followed(float maximum, float largest, float scale, float slack = kSlack) {
  return (largest - maximum) * scale > slack ? largest : maximum;
}

/// In base 2, of a sum relative to 2^base.
__device__ inline float lse_of(float sum, float base) { return sum == 0 ? -INFINITY : base + log2f(sum); }

/// Range of probabilities: 2^kShift at the maximum, up to 2^(kShift + kSlack) before the maximum follows.
struct FloatRange {
  static constexpr float kShift = 0, kSlack = gpu::kSlack;
};
/// e4m3 ends at 448 = 2^8.8 and has its last full digit at 2^-6.
struct E4m3Range {
  static constexpr float kShift = 7, kSlack = 1;
};
/// The same where exponents follow from sums of integers: they are off by 0.06 at most. Scores are needed less often than with less slack.
struct E4m3SumRange {
  static constexpr float kShift = 6, kSlack = 2.7f;
};

/// `Lanes`: the operations of a warp on rows of accumulators, such as Warp of gpu/cuda/common/warp.cuh.
template <class Lanes, int kScores, class Range = FloatRange>
struct OnlineSoftmax {
  float maximum[2], sum[2];  // of the lane's two rows; `sum` is the lane's share
  float rescale[2];          // what the accumulators are to be multiplied by, where `grown`
  bool quick;                // of the warp: only scores above 0 can outgrow the maximum of their row

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      maximum[r] = -INFINITY;
      sum[r] = 0;
    }
    quick = false;
  }

  /// Scores become probabilities, unrounded, and join the sum. Returns whether the warp's accumulators are to be rescaled.
  /// `zero` is one that the compiler does not know.
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
  /// The probability of a key at the maximum, 2^kShift but for the rounding of `base`.
  __device__ __forceinline__ float top(int r, float scale) const {
    return Lanes::exp2(is_plain(maximum[r] * scale) ? fmaf(maximum[r], scale, -base(r, scale)) : Range::kShift);
  }

  /// Each lane has the sum of its rows then.
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

  /// In pieces, each of which waits for an exponential of the one before: else the compiler does all multiply-adds first, and the unit for
  /// exponentials has nothing to do meanwhile. Equal parts of the scores have a factor each.
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
    // Sums after all exponentials: an addition behind each would wait for it. Two chains for each row.
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

/// The same over the scores of one row, one after another, all lanes together.
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
