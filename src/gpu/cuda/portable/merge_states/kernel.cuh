// SPDX-License-Identifier: Apache-2.0
/// A few lanes merge one (row, head). A lane reads an element of all parts before it writes that element, and all lanes read
/// every lse before one is written, so the result may overwrite one of the parts.
#pragma once

#include <cmath>
#include <type_traits>

#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/portable/merge_states/params.hpp"

namespace fovea::gpu::portable::merge {

/// The running softmax over the parts of one (row, head): the same bits in each of its lanes.
struct State {
  float largest = -INFINITY;  ///< of the log-sum-exps
  float sum = 0;              ///< of the weights
};

struct Cell {
  std::uint32_t row, head;
};

/// One load of a lane. 16 bytes stay words until they are added: unpacked, each element would take a register.
template <class T, int kPack>
using Loaded = std::conditional_t<sizeof(T) * kPack == kPackBytes, uint4, Pack<T, kPack>>;

template <class T, int kPack>
__device__ inline void add(const Loaded<T, kPack>& loaded, float weight, float (&sums)[kPack]) {
  if constexpr (std::is_same_v<Loaded<T, kPack>, uint4>) {
    const std::uint32_t words[] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kPack == 4) {
        sums[i] += weight * __uint_as_float(words[i]);
      } else {
        const float2 both = two_to_f32<T>(&words[i]);
        sums[2 * i] += weight * both.x;
        sums[2 * i + 1] += weight * both.y;
      }
    }
  } else {
    for (int i = 0; i < kPack; ++i) sums[i] += weight * to_f32(loaded.element[i]);
  }
}

/// A few parts, whose loads are in flight together.
template <class T, int kPack>
struct Batch {
  Loaded<T, kPack> loaded[kBatch][kColumns];
  float lse[kBatch];  ///< minus infinity where the part is empty

  /// Columns past the row's end are not set.
  __device__ void load(const Params& params, int first, const Cell& cell, std::int64_t d, std::int64_t apart) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      lse[i] = -INFINITY;
      if (first + i >= params.part_count) continue;
      const auto& from = params.parts[first + i];
      lse[i] = from.lse[cell.row * from.lse_row + cell.head * from.lse_head];
      const T* row = static_cast<const T*>(from.out) + (cell.row * from.out_row + cell.head * from.out_head + d);
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        if (d + column * apart >= params.head_dim_v) continue;
        loaded[i][column] = *reinterpret_cast<const Loaded<T, kPack>*>(row + column * apart);
      }
    }
  }

  /// An empty part may hold NaN, so it is skipped, not multiplied by 0.
  __device__ void add_to(State& state, float (&sums)[kColumns][kPack]) {
    float largest = state.largest;
#pragma unroll
    for (float& value : lse) {
      if (!isfinite(value)) value = -INFINITY;
      largest = fmaxf(largest, value);
    }
    if (state.sum > 0) {
      const float kept = expf(state.largest - largest);
      state.sum *= kept;
#pragma unroll
      for (float(&column)[kPack] : sums) {
        for (float& sum : column) sum *= kept;
      }
    }
    state.largest = largest;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (lse[i] == -INFINITY) continue;
      const float weight = expf(lse[i] - largest);
      state.sum += weight;
#pragma unroll
      for (int column = 0; column < kColumns; ++column) add<T, kPack>(loaded[i][column], weight, sums[column]);
    }
  }
};

/// Merges the lane's columns from d on. A pass continues from the sums of the earlier ones.
template <class T, int kPack>
__device__ inline State merge_columns(const Params& params, std::int64_t at, const Cell& cell, std::int64_t d, std::int64_t apart) {
  State state;
  float sums[kColumns][kPack] = {};
  float* carried = params.carry.out + at * params.head_dim_v + d;
  const auto has = [&](int column) { return d + column * apart < params.head_dim_v; };
  if (!params.first) {
    state = {params.carry.largest[at], params.carry.sum[at]};
    for (int column = 0; column < kColumns && has(column); ++column) {
      for (int i = 0; i < kPack; ++i) sums[column][i] = carried[column * apart + i];
    }
  }
#pragma unroll 1
  for (int first = 0; first < params.part_count; first += kBatch) {
    Batch<T, kPack> batch;
    batch.load(params, first, cell, d, apart);
    batch.add_to(state, sums);
  }
  const float inverse = state.sum > 0 ? __fdividef(1.0f, state.sum) : 0.0f;  // the largest weight is 1: no sum is tiny
  T* out = static_cast<T*>(params.result.out) + (cell.row * params.result.out_row + cell.head * params.result.out_head + d);
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    if (!has(column)) continue;
    if (params.last) {
      Pack<T, kPack> pack;
      for (int i = 0; i < kPack; ++i) from_f32(sums[column][i] * inverse, pack.element[i]);
      store_pack(out + column * apart, pack);
    } else {
      for (int i = 0; i < kPack; ++i) carried[column * apart + i] = sums[column][i];
    }
  }
  return state;
}

template <class T, int kPack>
__global__ void __launch_bounds__(kThreads) merge_states(const __grid_constant__ Params params) {
  const int shift = __ffs(params.lanes) - 1, lane = static_cast<int>(threadIdx.x) & (params.lanes - 1);
  const std::uint32_t at = blockIdx.x * (kThreads >> shift) + (threadIdx.x >> shift);
  const Cell cell{at / params.heads, at % params.heads};
  const bool there = at < params.cells;
  State state;
  if (there) {
    const std::int64_t apart = std::int64_t{params.lanes} * kPack;
    for (std::int64_t d = lane * kPack; d < params.head_dim_v; d += kColumns * apart) {
      state = merge_columns<T, kPack>(params, at, cell, d, apart);
    }
  }
  __syncwarp();  // all lanes wait until every lane has read the lse of this cell
  if (!there || lane != 0) return;
  if (!params.last) {
    params.carry.largest[at] = state.largest;
    params.carry.sum[at] = state.sum;
  } else if (params.result.lse != nullptr) {
    params.result.lse[cell.row * params.result.lse_row + cell.head * params.result.lse_head] =
        state.sum > 0 ? state.largest + logf(state.sum) : -INFINITY;
  }
}

}  // namespace fovea::gpu::portable::merge
