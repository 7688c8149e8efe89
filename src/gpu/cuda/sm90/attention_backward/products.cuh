// SPDX-License-Identifier: Apache-2.0
/// Products of a warpgroup that has 64 rows, be they keys or queries, and how its results leave. Tiles in shared memory are slices of 64
/// columns, each of so many bytes.
#pragma once

#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::attention_backward {

struct Tile {
  std::uint32_t at;
  int slice_bytes;
};

/// scores (64 x kColumns) = rows (64 x kDim) columns (kColumns x kDim)^T
template <class Element, int kDim, int kColumns>
__device__ __forceinline__ void multiply_rows(float (&scores)[kColumns / 2], Tile rows, Tile columns) {
  const std::uint64_t a = operand_at(rows.at, 16, kGroupBytes), b = operand_at(columns.at, 16, kGroupBytes);
  pin(scores);
  products_begin();
#pragma unroll
  for (int k = 0; k < kDim / 16; ++k) {
    const int slice = k / 4, inside = k % 4 * 32;
    Wgmma<Element, kColumns>::template ss<Major::k>(scores, advanced(a, slice * rows.slice_bytes + inside),
                                                    advanced(b, slice * columns.slice_bytes + inside), k > 0);
  }
  products_commit();
}

/// sum (64 x kDim) += weights (64 x kRows) rows (kRows x kDim)
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void accumulate(float (&sum)[kDim / 2], std::uint32_t (&weights)[kRows / 4], Tile rows) {
  const std::uint64_t b = operand_at(rows.at, rows.slice_bytes, kGroupBytes);
  pin(weights);
  pin(sum);
  products_begin();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k)
    Wgmma<Element, kDim>::template rs<Major::mn>(sum, &weights[4 * k], advanced(b, k * 2 * kGroupBytes), true);
  products_commit();
}

/// Results into shared memory, rounded. `to`: the warpgroup's 64 rows.
template <class Element, int kDim>
__device__ __forceinline__ void stage_rows(const float (&sum)[kDim / 2], float factor, Tile to) {
  std::uint32_t pairs[kDim / 4];
#pragma unroll
  for (int i = 0; i < kDim / 4; ++i) pairs[i] = pack<Element>(sum[2 * i] * factor, sum[2 * i + 1] * factor);
  store_swizzled<kDim>(to.at + thread_index() % 128 / 32 * 2 * kGroupBytes, to.slice_bytes, lane_index(), pairs);
}

}  // namespace fovea::gpu::sm90::attention_backward
