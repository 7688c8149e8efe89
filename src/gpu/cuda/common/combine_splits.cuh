// SPDX-License-Identifier: Apache-2.0
/// Merges the splits of the keys of each row, in the order of the splits.
#pragma once

#include <cstdint>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu {

inline constexpr int kCombineWarps = 8;

/// A warp for each row and head: out = sum_s 2^(lse_s - lse) out_s, with the sink's share of the denominator.
/// kProgrammatic: starts while the kernel before it still runs.
template <class Element, bool kProgrammatic>
__global__ void __launch_bounds__(32 * kCombineWarps) combine_splits(const __grid_constant__ Splits splits) {
  if constexpr (kProgrammatic) grid_dependency_wait();
  const std::int64_t cell = std::int64_t{blockIdx.x} * kCombineWarps + threadIdx.x / 32, cells = splits.cells();
  if (cell >= cells) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, head = static_cast<int>(cell % splits.heads);
  const std::int64_t batch = cell / splits.heads / splits.seq_q, row = cell / splits.heads - batch * splits.seq_q;

  const float own = lane < splits.count ? splits.lse[lane * cells + cell] * kLog2e : -INFINITY;
  float largest = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  const float weight = own == -INFINITY ? 0 : exp2f(own - largest), sum = Warp::sum_of_warp(weight);
  if (splits.result_lse != nullptr && lane == 0) {
    const detail::RowStrides& strides = splits.lse_strides;
    splits.result_lse[batch * strides.batch + row * strides.row + head * strides.head] = lse_of(sum, largest) * kLn2;
  }
  const float total = sum + (splits.sink != nullptr ? exp2f(fmaf(splits.sink[head], kLog2e, -largest)) : 0.0f);
  const float factor = sum == 0 ? 0 : 1 / total;
  const detail::RowStrides& strides = splits.result_strides;
  auto* out = static_cast<Element*>(splits.result) + batch * strides.batch + row * strides.row + head * strides.head;
  for (int column = lane; column - lane < splits.head_dim_v; column += 32) {
    float x = 0;
    for (int split = 0; split < splits.count; ++split) {
      const float of = __shfl_sync(~0u, weight, split);
      // A weight of 0 still carries what is not finite.
      if (__shfl_sync(~0u, own, split) == -INFINITY || column >= splits.head_dim_v) continue;
      x = fmaf(of, splits.out[(split * cells + cell) * splits.head_dim_v + column], x);
    }
    if (column < splits.head_dim_v) from_f32(factor == 0 ? 0.0f : x * factor, out[column]);
  }
}

template <bool kProgrammatic>
CudaStatus launch_combine(const Splits& splits, DType dtype, Stream stream) {
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(detail::ceil_div(splits.cells(), kCombineWarps))),
                          .block = dim3(32 * kCombineWarps),
                          .programmatic = kProgrammatic};
  if (dtype == DType::f32) return launch(&combine_splits<float, kProgrammatic>, shape, stream, splits);
  if (dtype == DType::f16) return launch(&combine_splits<__half, kProgrammatic>, shape, stream, splits);
  return launch(&combine_splits<__nv_bfloat16, kProgrammatic>, shape, stream, splits);
}

}  // namespace fovea::gpu
