// SPDX-License-Identifier: Apache-2.0
/// The combination of split requests.
#pragma once

#include "gpu/cuda/sm90/latent_attention/launch.hpp"
#include "gpu/cuda/sm90/latent_attention/output.cuh"

namespace fovea::gpu::sm90::latent {

/// Whether blocks take the requests by turns or, where there are fewer, the parts that may stand for one.
__host__ __device__ constexpr bool by_requests(const Params& params) {
  return params.batch <= (params.parts - 1) / detail::SplitSchedule::kCollected;
}

/// The request that blocks of this y may have to merge, and whether they do: from the schedule and the lengths that it was made from, which
/// are older than the kernel that this one waits for.
struct Merge {
  __device__ explicit Merge(const Params& params) : schedule(schedule_of(params)) {
    const int stand_in = (blockIdx.y + 1) * schedule.kCollected;
    const bool by_request = by_requests(params);
    const int index = by_request ? blockIdx.y : params.first_request[stand_in];
    parts = schedule.parts_of(index);
    request = request_at(params, index);
    wanted = schedule.merged_after(parts) && (by_request || schedule.stand_in(parts) == stand_in);
  }

  detail::SplitSchedule schedule;
  detail::TileRange parts;
  Request request;
  bool wanted;
};

/// Merges requests of many parts, in the order of the parts. Grid (row tiles x column blocks x kGroups, y, kv heads). A thread has the rows
/// and kColumns chunks of the accumulators that a math thread had. kGroups groups of warps share the parts of the same rows.
inline constexpr int kMaxParts = 160;  // of a request; more SMs than any Hopper has
template <class Element, int kGroups>
__global__ void __launch_bounds__(kMathThreads) combine(const __grid_constant__ Params params) {
  constexpr int kColumns = 4, kBlocks = kPartialChunks / kColumns, kAtOnce = 4;
  constexpr int kWarps = kMathThreads / 32 / kGroups;  // of a group, and math warps of this block
  constexpr int kRows = kWarps >= 4 ? kRowTile : kWarps * kMathWarpRows, kRowLanes = kMathThreads / kRows;
  __shared__ float weights[kMaxParts][kRows], totals[kRows], maxima[kRows];
  __shared__ float4 sums[kGroups][kColumns][kWarps * 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / kWarps;
  const int first_warp = blockIdx.x % kGroups * kWarps, math_warp = first_warp + warp % kWarps;
  const int chunk = blockIdx.x / kGroups % kBlocks * kColumns, tile = blockIdx.x / kGroups / kBlocks;
  const int first_row = math_warp % 4 * kMathWarpRows + lane / 4;
  const Merge merge(params);
  const detail::TileRange& parts = merge.parts;
  const int row_begin = first_warp % 4 * kMathWarpRows, rows = merge.request.q_rows * params.heads_per_kv - tile * kRowTile;
  wait_for_previous_kernel();
  if (!merge.wanted || row_begin >= rows) return;

  const auto place_of = [&](int part, int of_warp) {
    return PartialPlace(params, merge.schedule.slot(parts.begin + part, part > 0), blockIdx.z, tile, of_warp);
  };
  const int count = parts.end - parts.begin;
  float4 x[kAtOnce][kColumns];
  const auto ask = [&](int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int part = first + j * kGroups;
      if (part >= count || first_row - lane / 4 >= rows) continue;  // of rows that there are not, nothing has been stored
      const float4* from = place_of(part, math_warp).sums() + chunk * 32 + lane;
#pragma unroll
      for (int i = 0; i < kColumns; ++i) x[j][i] = from[i * 32];
    }
  };
  ask(group);

  // Weights of the parts, row by row: a row's lanes take them by turns, and ask for several at once.
  const int my_row = threadIdx.x / kRowLanes, my_first = threadIdx.x % kRowLanes, row = row_begin + my_row;
  float largest = kNothing, sum = 0;
  for (int first = my_first; first < count; first += kAtOnce * kRowLanes) {
    float lse[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = first + i * kRowLanes;
      lse[i] = -INFINITY;
      if (part < count && row < rows) lse[i] = place_of(part, row / kMathWarpRows).lse()[row % kMathWarpRows];
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * kRowLanes < count) weights[first + i * kRowLanes][my_row] = lse[i];
      largest = fmaxf(largest, lse[i]);
    }
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  for (int part = my_first; part < count; part += kRowLanes) {
    float& weight = weights[part][my_row];
    weight = exp2f(weight - largest);
    sum += weight;
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % kRowLanes == 0) {
    totals[my_row] = sum;
    maxima[my_row] = largest;
  }
  __syncthreads();

  float4 out[kColumns] = {};
  for (int first = group; first < count; first += kAtOnce * kGroups) {
    if (first > group) ask(first);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (first + j * kGroups >= count) break;
      const float* weight = &weights[first + j * kGroups][first_row - row_begin];
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        out[i] = {out[i].x + weight[0] * x[j][i].x, out[i].y + weight[0] * x[j][i].y, out[i].z + weight[8] * x[j][i].z,
                  out[i].w + weight[8] * x[j][i].w};
      }
    }
  }
  if constexpr (kGroups > 1) {
    const int place = threadIdx.x % (kWarps * 32);
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[group][i][place] = out[i];
    __syncthreads();
    if (group > 0) return;
    for (int other = 1; other < kGroups; ++other) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float4 x = sums[other][i][place];
        out[i] = {out[i].x + x.x, out[i].y + x.y, out[i].z + x.z, out[i].w + x.w};
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int local = first_row - row_begin + 8 * r;
    const OutputRow row(params, merge.request, blockIdx.z, tile * kRowTile + first_row + 8 * r);
    const float normalise = row.normalise(params, totals[local], maxima[local]);
#pragma unroll
    for (int i = 0; i < kColumns; i += 2) {
      float x[4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        x[2 * j] = (r == 0 ? out[i + j].x : out[i + j].z) * normalise;
        x[2 * j + 1] = (r == 0 ? out[i + j].y : out[i + j].w) * normalise;
      }
      row.store<Element>(math_warp / 4 * (kValueDim / 2) + 8 * (chunk + i), lane, x);
    }
    if (chunk == 0 && math_warp < 4 && lane % 4 == 0) row.store_lse(lse_of(totals[local], maxima[local]));
  }
}

template <class Element>
Result<void> launch_combine(const Params& params, int blocks, Stream stream) {
  const int stand_ins = (params.parts - 1) / detail::SplitSchedule::kCollected;
  if (stand_ins == 0) return {};  // no request has more parts than the first of them collects
  const int requests = by_requests(params) ? params.batch : stand_ins;
  const int least = params.row_tiles * kPartialChunks / 4 * requests * params.kv_heads;
  const auto with_groups = [&](auto* kernel, int groups) {
    const LaunchShape shape{.grid = dim3(params.row_tiles * kPartialChunks / 4 * groups, requests, params.kv_heads),
                            .block = dim3(kMathThreads),
                            .programmatic = true};
    return launch(kernel, shape, stream, params);
  };
  if (least * 8 <= blocks) return with_groups(&combine<Element, 8>, 8);
  if (least * 4 <= blocks) return with_groups(&combine<Element, 4>, 4);
  return with_groups(&combine<Element, 1>, 1);
}

}  // namespace fovea::gpu::sm90::latent
