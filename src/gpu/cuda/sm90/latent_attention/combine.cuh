// SPDX-License-Identifier: Apache-2.0
/// The combination of split requests.
#pragma once

#include "gpu/cuda/sm90/latent_attention/launch.hpp"
#include "gpu/cuda/sm90/latent_attention/output.cuh"

namespace fovea::gpu::sm90::latent {

/// Merges the parts of split requests, in the order of the parts. Grid (row tiles x column blocks x kGroups, y, kv heads): y goes over the
/// requests or, where they are fewer, over the parts: a request is split where a part begins inside of it, and the second of its parts
/// stands for it. A thread has the rows and kColumns chunks of the accumulators that a math thread had. kGroups warps share the parts of
/// the same rows.
inline constexpr int kCombineThreads = 256;
inline constexpr int kMaxParts = 160;  // of a request; more SMs than any Hopper has
template <class Element, int kGroups>
__global__ void __launch_bounds__(kCombineThreads) combine(const __grid_constant__ Params params) {
  constexpr int kColumns = 4, kBlocks = kPartialChunks / kColumns;
  __shared__ float weights[kMaxParts][kGroups > 1 ? 16 : kRowTile], totals[kRowTile], lses[kRowTile];
  __shared__ float4 sums[kGroups > 1 ? kGroups : 1][kColumns][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = kGroups > 1 ? warp : 0;
  const int math_warp = kGroups > 1 ? blockIdx.x % kGroups : warp;
  const int chunk = blockIdx.x / kGroups % kBlocks * kColumns, tile = blockIdx.x / kGroups / kBlocks;
  const int thread = math_warp * 32 + lane, first_row = math_warp % 4 * 16 + lane / 4;
  wait_for_previous_kernel();
  const detail::SplitSchedule schedule = schedule_of(params);
  const bool by_request = params.batch < params.parts;
  const int index = by_request ? blockIdx.y : params.first_request[blockIdx.y + 1];
  const detail::TileRange parts = schedule.parts_of(index);
  if (parts.end - parts.begin <= 1 || (!by_request && parts.begin != blockIdx.y)) return;

  const auto tile_of = [&](int part) {
    const std::int64_t slot = schedule.slot(part, part > parts.begin);
    return (slot * params.kv_heads + blockIdx.z) * params.row_tiles + tile;
  };
  // Weights of the parts, row by row: a row's lanes take them by turns.
  constexpr int kRows = kGroups > 1 ? 16 : kRowTile, kRowLanes = kCombineThreads / kRows;
  const int row_begin = kGroups > 1 ? math_warp % 4 * 16 : 0, my_row = threadIdx.x / kRowLanes;
  float largest = kNothing, sum = 0;
  const auto lse_of = [&](int part) { return params.partial_lse[tile_of(part) * kRowTile + row_begin + my_row]; };
#pragma unroll 4
  for (int part = parts.begin + threadIdx.x % kRowLanes; part < parts.end; part += kRowLanes) largest = fmaxf(largest, lse_of(part));
  for (int step = kRowLanes / 2; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
#pragma unroll 4
  for (int part = parts.begin + threadIdx.x % kRowLanes; part < parts.end; part += kRowLanes) {
    const float weight = exp2f(lse_of(part) - largest);
    weights[part - parts.begin][my_row] = weight;
    sum += weight;
  }
  for (int step = kRowLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % kRowLanes == 0) {
    totals[my_row] = sum;
    lses[my_row] = sum == 0 ? -INFINITY : largest + log2f(sum);
  }
  __syncthreads();

  float4 out[kColumns] = {};
#pragma unroll 4
  for (int part = parts.begin + group; part < parts.end; part += kGroups) {
    const float weight[2] = {weights[part - parts.begin][first_row - row_begin], weights[part - parts.begin][first_row - row_begin + 8]};
    const float4* from = params.partial + (tile_of(part) * kPartialChunks + chunk) * kMathThreads + thread;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      const float4 x = from[i * kMathThreads];
      out[i] = {out[i].x + weight[0] * x.x, out[i].y + weight[0] * x.y, out[i].z + weight[1] * x.z, out[i].w + weight[1] * x.w};
    }
  }
  if constexpr (kGroups > 1) {
#pragma unroll
    for (int i = 0; i < kColumns; ++i) sums[group][i][lane] = out[i];
    __syncthreads();
    if (group > 0) return;
    for (int other = 1; other < kGroups; ++other) {
#pragma unroll
      for (int i = 0; i < kColumns; ++i) {
        const float4 x = sums[other][i][lane];
        out[i] = {out[i].x + x.x, out[i].y + x.y, out[i].z + x.z, out[i].w + x.w};
      }
    }
  }
  const Request request = request_at(params, index);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int local = first_row - row_begin + 8 * r;
    const float normalise = totals[local] == 0 ? 0.0f : 1.0f / totals[local];
    const OutputRow row(params, request, blockIdx.z, tile * kRowTile + first_row + 8 * r);
#pragma unroll
    for (int i = 0; i < kColumns; i += 4) {
      float x[8];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[2 * j] = (r == 0 ? out[i + j].x : out[i + j].z) * normalise;
        x[2 * j + 1] = (r == 0 ? out[i + j].y : out[i + j].w) * normalise;
      }
      row.store<Element>(thread / 128 * (kValueDim / 2) + 8 * (chunk + i), lane, x);
    }
    if (chunk == 0 && math_warp < 4 && lane % 4 == 0) row.store_lse(lses[local]);
  }
}

template <class Element>
Result<void> launch_combine(const Params& params, int groups, Stream stream) {
  const int requests = params.batch < params.parts ? params.batch : params.parts - 1;
  const LaunchShape shape{.grid = dim3(params.row_tiles * kPartialChunks / 4 * groups, requests, params.kv_heads),
                          .block = dim3(kCombineThreads),
                          .programmatic = true};
  return launch(groups > 1 ? &combine<Element, 8> : &combine<Element, 1>, shape, stream, params);
}

}  // namespace fovea::gpu::sm90::latent
