// SPDX-License-Identifier: Apache-2.0
/// Merges the splits of the keys of each row, in the order of the splits.
/// gpu/cuda/common/combine_splits.cuh has a warp for a whole row, which would read the splits of
/// 512 columns one after another.
#pragma once

#include <cstdint>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/attention_params.hpp"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/launch.hpp"
#include "op/common/division.hpp"

namespace fovea::gpu::portable::wide_attention {

inline constexpr int kCombineWarps = 4, kCombinedColumns = 128;  // of a CTA, and of a warp
inline constexpr int kMostSplits = 128;                          // a lane has the lse of four

/// lse of all splits of a row and head.
struct SplitWeights {
  static constexpr int kGroups = kMostSplits / 32;
  float weight[kGroups];  // of splits lane, lane + 32, ...; below 0 where a split has no key
  float largest = -INFINITY, sum = 0;

  __device__ SplitWeights(const Splits& splits, std::int64_t cell, int lane) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int split = 32 * g + lane;
      weight[g] = split < splits.count ? splits.lse[split * splits.cells() + cell] * kLog2e : -INFINITY;
      largest = fmaxf(largest, weight[g]);
    }
    largest = Warp::largest_of_warp(largest);
#pragma unroll
    for (float& x : weight) {
      const bool some = x != -INFINITY;
      x = some ? exp2f(x - largest) : 0;
      sum += x;
      if (!some) x = -1;
    }
    sum = Warp::sum_of_warp(sum);
  }
};

/// A warp for 128 columns of each row and head: out = sum_s 2^(lse_s - lse) out_s, with the sink's
/// share of the denominator. With `cu_seqlens_q`, rows that none of `batch` sequences has are left
/// alone.
template <class Element>
__global__ void __launch_bounds__(32 * kCombineWarps)
    combine(const __grid_constant__ Splits splits, const std::int32_t* cu_seqlens_q, int batch) {
  const int chunks = (splits.head_dim_v + kCombinedColumns - 1) / kCombinedColumns, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t item = std::int64_t{blockIdx.x} * kCombineWarps + threadIdx.x / 32, cell = item / chunks;
  if (cell >= splits.cells()) return;
  const std::int64_t row = cell / splits.heads, of_batch = row / splits.seq_q, token = row - of_batch * splits.seq_q;
  const int head = static_cast<int>(cell - row * splits.heads), chunk = static_cast<int>(item - cell * chunks);
  if (cu_seqlens_q != nullptr && (row < cu_seqlens_q[0] || row >= cu_seqlens_q[batch])) return;
  const SplitWeights own(splits, cell, lane);
  const auto offset = [&](const detail::RowStrides& strides) {
    return of_batch * strides.batch + token * strides.row + head * strides.head;
  };
  if (splits.result_lse != nullptr && chunk == 0 && lane == 0) {
    splits.result_lse[offset(splits.lse_strides)] = lse_of(own.sum, own.largest) * kLn2;
  }
  const int column = chunk * kCombinedColumns + 4 * lane, readable = min(column, splits.head_dim_v - 4);
  float4 x{};
#pragma unroll
  for (int g = 0; g < SplitWeights::kGroups; ++g) {
#pragma unroll 8
    for (int split = 32 * g; split < min(splits.count, 32 * g + 32); ++split) {
      const float4 y = *reinterpret_cast<const float4*>(splits.out + (split * splits.cells() + cell) * splits.head_dim_v + readable);
      const float weight = __shfl_sync(~0u, own.weight[g], split % 32);
      // A weight of 0 still carries what is not finite.
      if (weight >= 0) x = {fmaf(weight, y.x, x.x), fmaf(weight, y.y, x.y), fmaf(weight, y.z, x.z), fmaf(weight, y.w, x.w)};
    }
  }
  if (column >= splits.head_dim_v) return;
  const float total = own.sum + (splits.sink != nullptr ? exp2f(fmaf(splits.sink[head], kLog2e, -own.largest)) : 0.0f);
  const float factor = own.sum == 0 ? 0 : 1 / total;
  auto* out = static_cast<Element*>(splits.result) + offset(splits.result_strides) + column;
  const float columns[] = {x.x, x.y, x.z, x.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) from_f32(factor == 0 ? 0.0f : columns[i] * factor, out[i]);
}

/// `cu_seqlens_q`: of a ragged batch, else null.
inline CudaStatus launch_combine(const Splits& splits, const std::int32_t* cu_seqlens_q, int batch, DType dtype, Stream stream) {
  const std::int64_t warps = splits.cells() * detail::ceil_div(splits.head_dim_v, kCombinedColumns);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(detail::ceil_div(warps, kCombineWarps))), .block = dim3(32 * kCombineWarps)};
  return dtype == DType::f16 ? launch(&combine<__half>, shape, stream, splits, cu_seqlens_q, batch)
                             : launch(&combine<__nv_bfloat16>, shape, stream, splits, cu_seqlens_q, batch);
}

}  // namespace fovea::gpu::portable::wide_attention
