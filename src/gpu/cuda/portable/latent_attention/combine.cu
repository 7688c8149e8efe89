// SPDX-License-Identifier: Apache-2.0
/// Combines the partial results of query tiles that several splits share, in an order that the plan decides.
#include <algorithm>

#include "gpu/common/score_transform.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/latent_attention/config.hpp"
#include "gpu/cuda/portable/latent_attention/work.cuh"
#include "op/common/division.hpp"

namespace fovea::gpu::portable::latent_attention {
namespace {

using paged_attention::RowState;

constexpr int kRowThreads = kValueDim / 4, kAtOnce = 8;  // a thread has four columns, and loads of as many splits in flight
/// Splits that a block looks at. Few begin a query tile, and a block for each takes longer to launch than it computes.
constexpr int kMostSplits = 8;
constexpr int kMostGroups = 4;  // of kRowThreads threads, which share the splits of a row

__device__ void store(const Params& params, const RowPlace& place, const RowResult& result, const float4& x) {
  if (threadIdx.x == 0) result.store(params, place, score_transform(params).scale_log2);
  const float factor = result.normalise(params, place.head, 1);
  const float of[4] = {x.x * factor, x.y * factor, x.z * factor, x.w * factor};
  auto* to = static_cast<std::uint16_t*>(params.out) + place.in(params.out_strides) + 4 * threadIdx.x;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const std::uint32_t pair = params.bf16 ? pack<__nv_bfloat16>(of[i], of[i + 1]) : pack<__half>(of[i], of[i + 1]);
    if (params.out_aligned) {
      *reinterpret_cast<std::uint32_t*>(to + i) = pair;
    } else {
      to[i] = static_cast<std::uint16_t>(pair);
      to[i + 1] = static_cast<std::uint16_t>(pair >> 16);
    }
  }
}

__device__ void add(float4& sum, const float4& x, float factor) {
  sum = {fmaf(x.x, factor, sum.x), fmaf(x.y, factor, sum.y), fmaf(x.z, factor, sum.z), fmaf(x.w, factor, sum.w)};
}

/// Combines a row of the query tile that `split` begins and does not end. A lane has the state of one split of 32, and each group of
/// threads adds up the columns of its own splits.
__device__ void combine_row(const Params& params, const WorkTile& work, int row, int split, int kv_head, int row_tile) {
  __shared__ float4 sums[kMostGroups - 1][kRowThreads];
  const int last = work.last_split, lane = static_cast<int>(threadIdx.x) % 32;
  const int group = static_cast<int>(threadIdx.y), groups = static_cast<int>(blockDim.y);
  const float scale_log2 = score_transform(params).scale_log2;
  const auto cell = [&](int of) { return cell_of(params, paged_attention::partial_slot(of, of != split), kv_head, row, row_tile); };
  const float* columns = params.partials.out + 4 * threadIdx.x;
  RowState state{-INFINITY, 0};
  float largest = -INFINITY;
  float4 sum{};
#pragma unroll 1
  for (int begin = split; begin <= last; begin += 32) {
    const int count = min(last - begin + 1, 32);
    const std::int64_t own_cell = cell(begin + min(lane, count - 1));
    const RowState own = params.partials.states[own_cell];
    const float own_largest = params.partial_largest[own_cell];
    float4 x[kAtOnce];
    const auto load = [&](int first) {
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] = *reinterpret_cast<const float4*>(columns + cell(begin + min(first + i, count - 1)) * kValueDim);
      }
    };
    load(group * kAtOnce);  // before the states are used
    largest = fmaxf(largest, own_largest);
    const float maximum = fmaxf(state.maximum, Warp::largest_of_warp(own.maximum));
    const float keep = rescale_factor<Warp>(state.maximum, maximum, scale_log2);
    const float weight = lane < count ? own.sum * rescale_factor<Warp>(own.maximum, maximum, scale_log2) : 0;
    state = {maximum, fmaf(state.sum, keep, Warp::sum_of_warp(weight))};
    sum = {sum.x * keep, sum.y * keep, sum.z * keep, sum.w * keep};
#pragma unroll 1
    for (int first = group * kAtOnce; first < count; first += groups * kAtOnce) {
      if (first >= groups * kAtOnce) load(first);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const float factor = __shfl_sync(~0u, weight, first + i);
        if (first + i < count) add(sum, x[i], factor);
      }
    }
  }
  if (groups > 1) {
    if (group > 0) sums[group - 1][threadIdx.x] = sum;
    __syncthreads();
    for (int of = 1; of < groups; ++of) add(sum, sums[of - 1][threadIdx.x], 1);
    __syncthreads();
  }
  if (group > 0) return;
  const RowResult result{state.sum, state.maximum * scale_log2, Warp::largest_of_warp(largest)};
  store(params, RowPlace(params, work, kv_head, work.row + row), result, sum);
}

/// Grid (row of a query tile, `splits` of the splits, kv head). A split begins one query tile at most that it does not end.
__global__ void __launch_bounds__(kRowThreads* kMostGroups) combine(const __grid_constant__ Params params, int row_tile, int splits) {
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(blockIdx.y) * splits, own = first + static_cast<int>(threadIdx.x) % 32;
  const auto unfinished = [&](int split) -> const WorkTile& { return params.unfinished[split * params.kv_heads + kv_head]; };
  grid_dependency_wait();
  const bool has_row = own < min(first + splits, params.splits) && row < unfinished(own).rows;
  for (unsigned begun = __ballot_sync(~0u, has_row); begun != 0; begun &= begun - 1) {
    const int split = first + __ffs(static_cast<int>(begun)) - 1;
    combine_row(params, unfinished(split), row, split, kv_head, row_tile);
  }
}

}  // namespace

CudaStatus launch_combine(const Params& params, int row_tile, int row_tiles, Stream stream) {
  const int of_tile = params.splits / std::max(row_tiles, 1);  // splits of a query tile, if all are equal
  const int splits = params.queued ? kMostSplits : std::clamp(of_tile, 1, kMostSplits);
  const int groups = std::clamp(of_tile / kAtOnce, 1, kMostGroups);
  const LaunchShape shape{.grid = dim3(static_cast<unsigned>(row_tile), static_cast<unsigned>(detail::ceil_div(params.splits, splits)),
                                       static_cast<unsigned>(params.kv_heads)),
                          .block = dim3(kRowThreads, static_cast<unsigned>(groups)),
                          .programmatic = true};
  return launch(&combine, shape, stream, params, row_tile, splits);
}

}  // namespace fovea::gpu::portable::latent_attention
