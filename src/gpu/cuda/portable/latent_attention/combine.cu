// SPDX-License-Identifier: Apache-2.0
/// Combines the partial results of query tiles that several splits share, in the order of the splits.
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

constexpr int kCombineThreads = kValueDim / 4, kAtOnce = 8;  // a thread has four columns, and loads of as many splits in flight
constexpr int kSplitsOfBlock = 8;  // few splits begin a query tile, and a block for each takes longer to launch than it computes

/// A row over the splits from `begin` to `last`; its columns are not normalised.
struct CombinedRow {
  RowState state{-INFINITY, 0};
  float largest = -INFINITY;
  float4 columns{};

  __device__ void add(const RowState& of, const float4& x, float scale_log2) {
    const float maximum = fmaxf(state.maximum, of.maximum);
    const float keep = rescale_factor<Warp>(state.maximum, maximum, scale_log2);
    const float weight = of.sum * rescale_factor<Warp>(of.maximum, maximum, scale_log2);
    state = {maximum, fmaf(state.sum, keep, weight)};
    columns = {fmaf(columns.x, keep, weight * x.x), fmaf(columns.y, keep, weight * x.y), fmaf(columns.z, keep, weight * x.z),
               fmaf(columns.w, keep, weight * x.w)};
  }
};

__device__ void store(const Params& params, const RowPlace& place, const CombinedRow& row, float scale_log2) {
  const RowResult result{row.state.sum, row.state.maximum * scale_log2, row.largest};
  if (threadIdx.x == 0) result.store(params, place, scale_log2);
  const float factor = result.normalise(params, place.head, 1);
  const float4& x = row.columns;
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

/// Combines a row of the query tile that `split` begins and does not end.
__device__ void combine_row(const Params& params, const WorkTile& work, int row, int split, int kv_head, int row_tile) {
  const float scale_log2 = score_transform(params).scale_log2;
  const int last = work.last_split;
  CombinedRow combined;
#pragma unroll 1
  for (int begin = split; begin <= last; begin += kAtOnce) {
    RowState states[kAtOnce];
    float4 columns[kAtOnce];
    float largest[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int of = min(begin + i, last);
      const std::int64_t cell = cell_of(params, paged_attention::partial_slot(of, of != split), kv_head, row, row_tile);
      states[i] = params.partials.states[cell];
      largest[i] = params.partial_largest[cell];
      columns[i] = *reinterpret_cast<const float4*>(params.partials.out + cell * kValueDim + 4 * threadIdx.x);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      combined.largest = fmaxf(combined.largest, largest[i]);
      if (begin + i <= last) combined.add(states[i], columns[i], scale_log2);
    }
  }
  store(params, RowPlace(params, work, kv_head, work.row + row), combined, scale_log2);
}

/// Grid (row of a query tile, group of splits, kv head). A split begins one query tile at most that it does not end.
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Params params, int row_tile) {
  const int row = static_cast<int>(blockIdx.x), kv_head = static_cast<int>(blockIdx.z);
  const int first = static_cast<int>(blockIdx.y) * kSplitsOfBlock, own = first + static_cast<int>(threadIdx.x) % 32;
  const auto unfinished = [&](int split) -> const WorkTile& { return params.unfinished[split * params.kv_heads + kv_head]; };
  grid_dependency_wait();
  const bool has_row = own < min(first + kSplitsOfBlock, params.splits) && row < unfinished(own).rows;
  for (unsigned begun = __ballot_sync(~0u, has_row); begun != 0; begun &= begun - 1) {
    const int split = first + __ffs(static_cast<int>(begun)) - 1;
    combine_row(params, unfinished(split), row, split, kv_head, row_tile);
  }
}

}  // namespace

CudaStatus launch_combine(const Params& params, int row_tile, Stream stream) {
  const LaunchShape shape{
      .grid = dim3(static_cast<unsigned>(row_tile), static_cast<unsigned>(detail::ceil_div(params.splits, kSplitsOfBlock)),
                   static_cast<unsigned>(params.kv_heads)),
      .block = dim3(kCombineThreads),
      .programmatic = true};
  return launch(&combine, shape, stream, params, row_tile);
}

}  // namespace fovea::gpu::portable::latent_attention
