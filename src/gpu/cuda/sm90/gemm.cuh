// SPDX-License-Identifier: Apache-2.0
/// Matrix products of a warpgroup with 64 rows, and the way of its results into shared memory. Tiles in
/// shared memory are slices of 128 bytes a row, one slice behind the other.
#pragma once

#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90 {

struct SlicedTile {
  std::uint32_t at;
  int slice_bytes;
  int group_bytes = kGroupBytes;  // between swizzle atoms of eight rows
};

template <int kCount>
__device__ __forceinline__ void clear(float (&accumulators)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) accumulators[i] = 0;
}

/// Rounds accumulators to operand a of MMAs. With e4m3, a register has two neighbours of each of two
/// groups of eight columns, as gpu/cuda/common/value_tiles.hpp orders the rows of operand b.
template <class Element, int kCount>
__device__ __forceinline__ void round_to(std::uint32_t (&to)[kCount * sizeof(Element) / 4], const float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount * static_cast<int>(sizeof(Element)) / 4; ++i) {
    if constexpr (sizeof(Element) == 1) {
      const float* four = x + i / 2 * 8 + i % 2 * 2;
      to[i] = pack_e4m3(four[0], four[1], four[4], four[5]);
    } else {
      to[i] = pack<Element>(x[2 * i], x[2 * i + 1]);
    }
  }
}

/// scores (64 x kColumns) = rows (64 x kDim) columns (kColumns x kDim)^T, both in shared memory
template <class Element, int kDim, int kColumns, class Sum>
__device__ __forceinline__ void gemm_ss(Sum (&scores)[kColumns / 2], SlicedTile rows, SlicedTile columns) {
  const std::uint64_t a = smem_descriptor(rows.at, 16, rows.group_bytes), b = smem_descriptor(columns.at, 16, columns.group_bytes);
  constexpr int kK = 32 / sizeof(Element);
  fence_operand(scores);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kDim / kK; ++k) {
    const int slice = k / 4, inside = k % 4 * 32;
    Wgmma<Element, kColumns>::template ss<Major::k>(scores, advance_descriptor(a, slice * rows.slice_bytes + inside),
                                                    advance_descriptor(b, slice * columns.slice_bytes + inside), k > 0);
  }
  wgmma_commit();
}

/// sum (64 x kDim) += weights (64 x kRows) rows (kRows x kDim), with weights in registers
template <class Element, int kRows, int kDim>
__device__ __forceinline__ void gemm_rs(float (&sum)[kDim / 2], std::uint32_t (&weights)[kRows / 4], SlicedTile rows) {
  const std::uint64_t b = smem_descriptor(rows.at, rows.slice_bytes, rows.group_bytes);
  fence_operand(weights);
  fence_operand(sum);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kRows / 16; ++k)
    Wgmma<Element, kDim>::template rs<Major::mn>(sum, &weights[4 * k], advance_descriptor(b, k * 2 * rows.group_bytes), true);
  wgmma_commit();
}

/// The same for e4m3, whose MMAs keep some 14 bits of a sum: accumulators of this call alone are
/// promoted to `sum` in f32, kColumns at a time. `columns`: address of a value tile
/// (gpu/cuda/common/value_tiles.hpp). Calls `done` once the tile has been read. `kBeside`: columns are
/// promoted beside the MMAs of the next ones, which takes registers for both.
template <class Element, int kRows, int kDim, int kColumns, bool kBeside, class Done>
__device__ __forceinline__ void gemm_rs_promoted(float (&sum)[kDim / 2], std::uint32_t (&weights)[kRows / 8], std::uint32_t columns,
                                                 const Done& done) {
  const std::uint64_t b = smem_descriptor_no_swizzle(columns, kDim * 16, 128);
  float partial[kBeside ? 2 : 1][kColumns / 2];
  const auto promote = [&](int begin, const float(&from)[kColumns / 2]) {
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) sum[begin / 2 + i] += from[i];
  };
#pragma unroll
  for (int begin = 0; begin < kDim; begin += kColumns) {
    const bool last = begin + kColumns == kDim;
    float(&part)[kColumns / 2] = partial[kBeside ? begin / kColumns % 2 : 0];
    fence_operand(weights);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kRows / 32; ++k)
      Wgmma<Element, kColumns>::template rs<Major::k>(part, &weights[4 * k], advance_descriptor(b, (2 * k * kDim + begin) * 16), k > 0);
    wgmma_commit();
    if (kBeside && begin > 0) {
      wgmma_wait<1>();
      fence_operand(partial[begin / kColumns % 2 ^ 1]);
      promote(begin - kColumns, partial[begin / kColumns % 2 ^ 1]);
    }
    if (kBeside && !last) continue;
    wgmma_wait<0>();
    fence_operand(part);
    if (last) done();
    promote(begin, part);
  }
}

/// Stores results to shared memory, rounded, each of the lane's two rows times its factor. `to`: the
/// warpgroup's 64 rows.
template <class Element, int kDim>
__device__ __forceinline__ void stage_rows(const float (&sum)[kDim / 2], const float (&factor)[2], SlicedTile to) {
  std::uint32_t pairs[kDim / 4];
#pragma unroll
  for (int i = 0; i < kDim / 4; ++i) pairs[i] = pack<Element>(sum[2 * i] * factor[i % 2], sum[2 * i + 1] * factor[i % 2]);
  store_swizzled<kDim>(to.at + thread_index() % 128 / 32 * 2 * kGroupBytes, to.slice_bytes, lane_index(), pairs);
}

}  // namespace fovea::gpu::sm90
