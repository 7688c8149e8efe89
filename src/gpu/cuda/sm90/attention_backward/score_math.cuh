// SPDX-License-Identifier: Apache-2.0
/// Arithmetic of scores between MMAs, whether keys or queries are the rows of the accumulators.
/// `Of`: a function from accumulators i and i + 1 to a float2 of their queries' lse or delta.
#pragma once

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/gemm.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// The lane's first row of a warpgroup's accumulators.
__device__ __forceinline__ int lane_row() { return thread_index() % 128 / 32 * 16 + lane_index() / 4; }

/// A probability, and the derivative of the softcap if there is one.
struct Weight {
  float p, slope;
};
template <bool kSoftcap, bool kNatural>
__device__ __forceinline__ Weight weight_of(const Params& params, float score, float minus_lse) {
  float scale = kNatural ? params.scale : params.scale_log2, slope = 1;
  if constexpr (kSoftcap) {
    const float tanh = tanh_by_exp2<Warp>(score * params.inv_softcap);
    slope = 1 - tanh * tanh;
    score = tanh;
    scale = kNatural ? params.softcap : params.softcap * kLog2e;
  }
  const float exponent = kNatural ? __fadd_rn(__fmul_rn(score, scale), minus_lse) * kLog2e : fmaf(score, scale, minus_lse);
  return {Warp::exp2(Warp::min_or_nan(exponent, 0)), slope};
}

template <bool kSoftcap, bool kNatural, int kScores, class Of, class Put>
__device__ __forceinline__ void exponentiate_as(const Params& params, const float (&scores)[kScores], Of minus_lse_of, Put put) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) {
    const float2 minus_lse = minus_lse_of(i);
    put(i, weight_of<kSoftcap, kNatural>(params, scores[i], minus_lse.x));
    put(i + 1, weight_of<kSoftcap, kNatural>(params, scores[i + 1], minus_lse.y));
  }
}
/// Calls `put` with the weight of each score. `natural`: of RowStats, the same in all lanes.
template <bool kSoftcap, int kScores, class Of, class Put>
__device__ __forceinline__ void exponentiate(const Params& params, bool natural, const float (&scores)[kScores], Of minus_lse_of, Put put) {
  if (natural) {
    exponentiate_as<kSoftcap, true>(params, scores, minus_lse_of, put);
  } else {
    exponentiate_as<kSoftcap, false>(params, scores, minus_lse_of, put);
  }
}

/// Zeroes probabilities of the lane's row r outside columns [begin, end], relative to the lane's first
/// column.
template <int kScores>
__device__ __forceinline__ void keep_columns(float (&scores)[kScores], int r, int begin, int end) {
#pragma unroll
  for (int i = 0; i < kScores; ++i) {
    if (row_of(i) == r && (column_of(i) < begin || column_of(i) > end)) scores[i] = 0;
  }
}

using sm90::round_to;
template <class Element, int kScores>
__device__ __forceinline__ void round_to(std::uint32_t (&to)[kScores / 2], const float (&scores)[kScores], const float (&slope)[kScores]) {
#pragma unroll
  for (int i = 0; i < kScores / 2; ++i) to[i] = pack<Element>(scores[2 * i] * slope[2 * i], scores[2 * i + 1] * slope[2 * i + 1]);
}

/// ds = p (dp - delta). `weights`: p, with the slope of a softcap; it may be `ds`.
template <class Element, int kScores, class Of>
__device__ __forceinline__ void differentiate_scores(std::uint32_t (&ds)[kScores / 2], const std::uint32_t (&weights)[kScores / 2],
                                                     const float (&dp)[kScores], Of delta_of) {
#pragma unroll
  for (int i = 0; i < kScores; i += 2) {
    const float2 delta = delta_of(i), weight = unpack<Element>(weights[i / 2]);
    ds[i / 2] = pack<Element>(weight.x * (dp[i] - delta.x), weight.y * (dp[i + 1] - delta.y));
  }
}

template <int kCount>
__device__ __forceinline__ bool not_finite(const float (&sum)[kCount]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) zero = fmaf(sum[i], 0.0f, zero);
  return zero != 0;
}

}  // namespace fovea::gpu::sm90::attention_backward
