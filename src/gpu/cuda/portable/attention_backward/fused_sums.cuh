// SPDX-License-Identifier: Apache-2.0
/// Sums of dq in the workspace, in the order of accumulators, and the kernels that clear and round
/// them.
#pragma once

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"
#include "gpu/cuda/portable/attention_backward/store.cuh"

namespace fovea::gpu::portable::attention_backward {

/// Whether one instruction adds four neighbours to sums in global memory.
inline constexpr bool kHasVectorAdd = kTarget >= 90;

/// Adds to a sum, in no order among threads.
__device__ inline void add_global(float* sum, float x) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(sum), "f"(x) : "memory");
}
/// The same for four neighbours, aligned to 16 bytes. Only with kHasVectorAdd.
__device__ inline void add_global(float* sums, float4 x) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(sums), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

/// The sums of a RowStats: rows of kColumns, in pieces of 32 rows x kWide columns that a warp has.
/// Lanes have four accumulators of each block of 16 rows and 8 columns (fragment.cuh) beside each
/// other, or the lanes of a warp one of them.
template <int kColumns, int kWide>
struct DqSums {
  static constexpr int kCount = kQueryTile * kColumns;

  /// The offset of a block, by its numbers among those of the rows and of the columns.
  static __device__ constexpr int offset(int row_block, int column_block) {
    const int piece = row_block / 2 * (kColumns / kWide) + column_block / (kWide / 8);
    return (piece * 32 + row_block % 2 * 16) * kWide + column_block % (kWide / 8) * kNextColumns;
  }
  /// From a block to the next in the same piece.
  static constexpr int kNextColumns = 128, kNextRows = 16 * kWide;

  static __device__ __forceinline__ void add(float* block, int lane, float4 x) {
    if constexpr (kHasVectorAdd) {
      add_global(block + lane * 4, x);
    } else {
      add_global(block + lane, x.x);
      add_global(block + lane + 32, x.y);
      add_global(block + lane + 64, x.z);
      add_global(block + lane + 96, x.w);
    }
  }
  static __device__ __forceinline__ float4 load(const float* block, int lane) {
    if constexpr (kHasVectorAdd) return *reinterpret_cast<const float4*>(block + lane * 4);
    return {block[lane], block[lane + 32], block[lane + 64], block[lane + 96]};
  }
};

/// Transposes 4 x 4 pairs among the lanes of a quad: afterwards pairs[j] is what lane j had in its
/// pairs[this lane].
__device__ __forceinline__ void transpose_quad(std::uint32_t (&pairs)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 4;
  std::uint32_t to[4];
#pragma unroll
  for (int distance = 0; distance < 4; ++distance) {
    const int other = lane ^ distance;
    const std::uint32_t low = other & 1 ? pairs[1] : pairs[0], high = other & 1 ? pairs[3] : pairs[2];
    to[distance] = __shfl_xor_sync(~0u, other & 2 ? high : low, distance);
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const std::uint32_t low = (j ^ lane) & 1 ? to[1] : to[0], high = (j ^ lane) & 1 ? to[3] : to[2];
    pairs[j] = (j ^ lane) & 2 ? high : low;
  }
}

inline constexpr int kSumsThreads = 256;

/// Rounds the sums of dq. A CTA for each query tile and head.
template <class Element, class Sums, int kColumns>
__global__ void __launch_bounds__(kSumsThreads) round_dq(const __grid_constant__ Params params) {
  constexpr int kWarps = kSumsThreads / 32, kAcross = kColumns / 32, kParts = kQueryTile / 16 * kAcross / kWarps;
  const int head = blockIdx.y, tile = blockIdx.x, lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t cell = std::int64_t{head} * params.query_tiles + tile;
  const auto part_at = [](int i) { return i * kWarps + static_cast<int>(threadIdx.x) / 32; };  // 16 rows x 32 columns
  float4 sums[kParts][4];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int offset = Sums::offset(part_at(i) / kAcross, part_at(i) % kAcross * 4 + n);
      sums[i][n] = Sums::load(params.dq_sums + cell * Sums::kCount + offset, lane);
    }
  }
  const Sequence at = sequence(params, sequence_at(params, params.cu_seqlens_q, params.seq_q, kQueryTile, tile));
  float zero = 0;
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const int column = part_at(i) % kAcross * 32 + lane % 4 * 8;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = (tile - at.query_tile) * kQueryTile + part_at(i) / kAcross * 16 + lane_row(lane) + 8 * r;
      std::uint32_t pairs[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float a = r == 0 ? sums[i][n].x : sums[i][n].z, b = r == 0 ? sums[i][n].y : sums[i][n].w;
        zero = fmaf(a, 0.0f, fmaf(b, 0.0f, zero));
        pairs[n] = pack<Element>(a * params.scale, b * params.scale);
      }
      transpose_quad(pairs);
      if (token >= at.seq_q || column >= params.head_dim_qk) continue;
      auto* const to =
          static_cast<std::uint16_t*>(const_cast<void*>(params.dq.data)) + column + at.offset(params.dq.strides, at.q_begin, token, head);
      if (params.dq.aligned) {
        *reinterpret_cast<uint4*>(to) = {pairs[0], pairs[1], pairs[2], pairs[3]};
      } else {
#pragma unroll
        for (int n = 0; n < 4; ++n) store_pair(to + 2 * n, pairs[n], false);
      }
    }
  }
  if (params.leaks && zero != 0) params.dq_not_finite[cell] = 1;
}

}  // namespace fovea::gpu::portable::attention_backward
