// SPDX-License-Identifier: Apache-2.0
/// Softmax and its gradient, of the scores of a block of 16 rows. Names are those of rows of
/// queries.
#pragma once

#include <climits>

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"

namespace fovea::gpu::portable::attention_backward {

/// `kOfScores`: ds is computed too.
template <bool kOfScores>
struct ScoreGradient {
  const Params& params;

  /// Scores become p, and dp becomes ds: p (dp - delta), with the slope of the softcap.
  /// `of_query.minus_lse(i)` and `of_query.delta(i)` are the numbers of the i-th accumulator's
  /// query.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void differentiate(float (&scores)[kScores], float (&dp)[kScores], int natural,
                                                const OfQuery& of_query) const {
    if constexpr (kOfScores) {
#pragma unroll
      for (int i = 0; i < kScores; ++i) dp[i] -= of_query.delta(i);
    }
    if (params.softcap != 0) cap(scores, dp);
    exponentiate(scores, dp, params.softcap != 0, natural, of_query);
  }

  /// Scores become p, and dp is multiplied by it. `scaled`: scores have natural units.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void exponentiate(float (&scores)[kScores], float (&dp)[kScores], bool scaled, int natural,
                                               const OfQuery& of_query) const {
    if (natural == 0) {
      const float scale = scaled ? kLog2e : params.scale_log2;
#pragma unroll
      for (int i = 0; i < kScores; ++i) scores[i] = fmaf(scores[i], scale, of_query.minus_lse(i));
    } else {
      const float scale = scaled ? 1 : params.scale;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        scores[i] = __fadd_rn(__fmul_rn(scores[i], scale), of_query.minus_lse(i)) * kLog2e;
      }
    }
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = Warp::exp2(Warp::min_or_nan(scores[i], 0));
      if constexpr (kOfScores) dp[i] *= scores[i];
    }
  }

  /// The same in two steps, without a softcap and with scores in base 2: first scores become p.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void weigh(float (&scores)[kScores], const OfQuery& of_query) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      scores[i] = Warp::exp2(Warp::min_or_nan(fmaf(scores[i], params.scale_log2, of_query.minus_lse(i)), 0));
    }
  }
  /// Then dp becomes ds.
  template <int kScores, class OfQuery>
  __device__ __forceinline__ void multiply(const float (&p)[kScores], float (&dp)[kScores], const OfQuery& of_query) const {
#pragma unroll
    for (int i = 0; i < kScores; ++i) dp[i] = (dp[i] - of_query.delta(i)) * p[i];
  }

  /// The pairs that a mask keeps: column minus row, the last row and the last column of the block.
  struct Kept {
    int low, high;
    int last_row = INT_MAX, last_column = INT_MAX;
  };
  /// Zeros elsewhere. `first_difference`: first column minus first row of the block.
  template <int kScores>
  __device__ __forceinline__ void mask(float (&p)[kScores], float (&ds)[kScores], int first_difference, const Kept& kept) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane_row(lane) + 8 * r, of_lane = first_difference + lane_column(lane) - row;
      const int begin = kept.low - of_lane;
      int end = min(kept.high - of_lane, kept.last_column - lane_column(lane));
      if (row > kept.last_row) end = -1;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (row_of(i) != r || (column_of(i) >= begin && column_of(i) <= end)) continue;
        p[i] = 0;
        if constexpr (kOfScores) ds[i] = 0;
      }
    }
  }

  /// Softcaps the scores, and multiplies dp by the derivative.
  template <int kScores>
  __device__ __forceinline__ void cap(float (&scores)[kScores], float (&dp)[kScores]) const {
    const Softcap softcap{params.scale, params.softcap, params.inv_softcap};
#pragma unroll
    for (int i = 0; i < kScores; ++i) {
      const Softcap::Capped capped = softcap.operator()<Warp>(scores[i]);
      if constexpr (kOfScores) dp[i] *= 1 - capped.tanh * capped.tanh;
      scores[i] = capped.score;
    }
  }
};

}  // namespace fovea::gpu::portable::attention_backward
