// SPDX-License-Identifier: Apache-2.0
/// Merges the splits of each row, in the order of the splits.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/programmatic_launch.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/attention/params.hpp"

namespace fovea::gpu::sm90::attention {

inline constexpr int kCombineWarps = 8;

/// A warp for each row and head: out = sum_s 2^(lse_s - lse) out_s, with the sink's share of the denominator.
template <class Result>
__global__ void __launch_bounds__(32 * kCombineWarps) combine(const __grid_constant__ Params params) {
  wait_for_previous_kernel();
  const std::int64_t cell = std::int64_t{blockIdx.x} * kCombineWarps + threadIdx.x / 32, cells = params.rows * params.heads;
  if (cell >= cells) return;
  const int lane = threadIdx.x % 32, head = static_cast<int>(cell % params.heads);
  const std::int64_t batch = cell / params.heads / params.seq_q, row = cell / params.heads - batch * params.seq_q;

  const float own = lane < params.splits ? params.partial_lse[lane * cells + cell] * kLog2e : -INFINITY;
  float largest = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  const float weight = own == -INFINITY ? 0 : exp2f(own - largest), sum = Warp::sum_of_warp(weight);
  if (params.lse != nullptr && lane == 0) {
    const detail::RowStrides& strides = params.lse_strides;
    params.lse[batch * strides.batch + row * strides.row + head * strides.head] = lse_of(sum, largest) * kLn2;
  }
  const float total = sum + (params.sink != nullptr ? exp2f(fmaf(params.sink[head], kLog2e, -largest)) : 0.0f);
  const float factor = sum == 0 ? 0 : 1 / total;
  const detail::RowStrides& strides = params.out.strides;
  auto* out = static_cast<Result*>(const_cast<void*>(params.out.data)) + batch * strides.batch + row * strides.row + head * strides.head;
  for (int column = lane; column - lane < params.head_dim_v; column += 32) {
    float x = 0;
    for (int split = 0; split < params.splits; ++split) {
      const float of = __shfl_sync(~0u, weight, split);
      // A weight of 0 still carries what is not finite.
      if (__shfl_sync(~0u, own, split) == -INFINITY || column >= params.head_dim_v) continue;
      x = fmaf(of, params.partial_out[(split * cells + cell) * params.head_dim_v + column], x);
    }
    if (column < params.head_dim_v) out[column] = static_cast<Result>(factor == 0 ? 0.0f : x * factor);
  }
}

}  // namespace fovea::gpu::sm90::attention
