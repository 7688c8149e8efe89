// SPDX-License-Identifier: Apache-2.0
/// A warp merges one (row, head) at a time. It reads every element of all parts before it writes that element, so the result may overwrite
/// one of the parts.
#pragma once

#include <cmath>

#include "gpu/common/element.cuh"
#include "gpu/cuda/portable/merge_states/params.hpp"

namespace fovea::gpu::portable::merge {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kEmpty = -1.0f;  ///< replaces the weight of an empty part, whose out is never read

/// Butterfly reductions: every lane gets the same bits.
__device__ inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}
__device__ inline float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

/// The running softmax over parts of one (row, head).
struct State {
  float largest, sum;
  float kept;  ///< factor of the sums that earlier passes carried over
};

/// Writes the weights of this pass to `weights` [part_count] in shared memory.
__device__ inline State weigh(const Params& params, std::int64_t cell, float* weights, int lane) {
  const std::int64_t row = cell / params.heads, head = cell % params.heads;
  const float before = params.first ? -INFINITY : params.carry.largest[cell];
  float largest = before;
  for (int part = lane; part < params.part_count; part += 32) {
    const auto& from = params.parts[part];
    const float lse = from.lse[row * from.lse_row + head * from.lse_head];
    weights[part] = isfinite(lse) ? lse : -INFINITY;
    largest = fmaxf(largest, weights[part]);
  }
  largest = warp_max(largest);
  float sum = 0;
  for (int part = lane; part < params.part_count; part += 32) {
    const float weight = expf(weights[part] - largest);
    weights[part] = isfinite(weights[part]) ? weight : kEmpty;
    if (weights[part] > 0) sum += weight;
  }
  State state{largest, warp_sum(sum), 0};
  if (isfinite(before)) {
    state.kept = expf(before - largest);
    state.sum += state.kept * params.carry.sum[cell];
  }
  __syncwarp();  // all lanes wait until the weights are written
  return state;
}

template <class T, int kPack>
__device__ inline void add_parts(const Params& params, std::int64_t row, std::int64_t head, std::int64_t d, const float* weights,
                                 float (&sums)[kPack]) {
  for (int part = 0; part < params.part_count; ++part) {
    if (weights[part] == kEmpty) continue;
    const auto& from = params.parts[part];
    const auto pack = load_pack<kPack>(static_cast<const T*>(from.out) + row * from.out_row + head * from.out_head + d);
    for (int i = 0; i < kPack; ++i) sums[i] += weights[part] * to_f32(pack.element[i]);
  }
}

template <class T, int kPack>
__device__ inline void store_result(const Params& params, std::int64_t row, std::int64_t head, std::int64_t d, float sum,
                                    const float (&sums)[kPack]) {
  Pack<T, kPack> pack;
  for (int i = 0; i < kPack; ++i) from_f32(sum > 0 ? sums[i] / sum : 0.0f, pack.element[i]);
  store_pack(static_cast<T*>(params.result.out) + row * params.result.out_row + head * params.result.out_head + d, pack);
}

template <class T, int kPack>
__global__ void __launch_bounds__(kThreads) merge_states(const __grid_constant__ Params params) {
  __shared__ float all_weights[kWarps][kPartsOfPass];  // (warp, part)
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  float* weights = all_weights[warp];  // (part)
  for (std::int64_t cell = std::int64_t{blockIdx.x} * kWarps + warp; cell < params.cells; cell += std::int64_t{gridDim.x} * kWarps) {
    const std::int64_t row = cell / params.heads, head = cell % params.heads;
    const State state = weigh(params, cell, weights, lane);
    for (std::int64_t d = lane * kPack; d < params.head_dim_v; d += 32 * kPack) {
      float sums[kPack] = {};
      float* carried = params.carry.out + cell * params.head_dim_v + d;
      if (!params.first && state.kept > 0) {
        for (int i = 0; i < kPack; ++i) sums[i] = state.kept * carried[i];
      }
      add_parts<T>(params, row, head, d, weights, sums);
      if (params.last) {
        store_result<T>(params, row, head, d, state.sum, sums);
      } else {
        for (int i = 0; i < kPack; ++i) carried[i] = sums[i];
      }
    }
    __syncwarp();  // all lanes wait until every lane has read the lse and the weights of this cell
    if (lane != 0) continue;
    if (!params.last) {
      params.carry.largest[cell] = state.largest;
      params.carry.sum[cell] = state.sum;
    } else if (params.result.lse != nullptr) {
      params.result.lse[row * params.result.lse_row + head * params.result.lse_head] =
          state.sum > 0 ? state.largest + logf(state.sum) : -INFINITY;
    }
  }
}

}  // namespace fovea::gpu::portable::merge
