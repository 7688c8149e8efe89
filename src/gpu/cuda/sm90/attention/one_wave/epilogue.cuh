// SPDX-License-Identifier: Apache-2.0
/// The end of a row: normalisation, lse, and results that are not finite.
#pragma once

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/sm90/attention/one_wave/math.cuh"

namespace fovea::gpu::sm90::one_wave {

__device__ inline float normaliser(const Params& params, RowPlace at, float sum, float base) {
  if (sum == 0) return 0;
  if (params.sink == nullptr) return __fdividef(1, sum);
  return 1 / (sum + exp2f(fmaf(params.sink[at.head], kLog2e, -base)));
}

/// `value`: in base 2.
__device__ inline void store_lse(const Params& params, const WorkTile& work, RowPlace at, float value) {
  if (params.lse.data == nullptr || at.token >= work.seq_q) return;
  auto* lse = static_cast<float*>(const_cast<void*>(params.lse.data));
  lse[work.offset(params.lse.strides, at)] = value * kLn2;
}

/// Masked keys, or a sink that hides all keys, give values the weight 0, and 0 times NaN is NaN.
__device__ inline bool may_be_nan(const Params& params, const WorkTile& work) {
  return work.full_first > work.first || work.full_last < work.last || params.sink != nullptr;
}

/// Computes a row from what it sees, by a whole warp, and calls put(column, value). `share`: of the
/// weighted mean of its values. It takes copies: what a call refers to would be in memory everywhere.
template <class Config, class Put>
__device__ __noinline__ void recompute_row(const Params& params, WorkTile work, RowPlace at, float share, Put put) {
  const dense::ExactRow<Config> exact{params, work, at, Config::kKeyTile};
  float columns[exact.kColumns];
  exact(score_scale<Config>(params), columns);
#pragma unroll
  for (int c = 0; c < exact.kColumns; ++c) {
    const int column = c * 32 + lane_index();
    if (column < params.head_dim_v) put(column, share == 0 ? 0.0f : columns[c] * share);
  }
}

}  // namespace fovea::gpu::sm90::one_wave
