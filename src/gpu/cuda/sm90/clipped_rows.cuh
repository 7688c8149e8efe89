// SPDX-License-Identifier: Apache-2.0
/// TMA loads and stores of tiles that end where a sequence ends. In shared memory a tile is slices of
/// columns, each with swizzled rows of 128 bytes.
#pragma once

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/clipped_rows.hpp"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90 {

/// Place of a tile in a tensor: its first token, and how many of its tokens exist, at most rows.tile.
struct TilePlace {
  int batch, head, token, valid;
};

__device__ inline BoxStart box_of(const ClippedRows& rows, TilePlace at) {
  return {0, at.head * rows.head_step, rows.tile - at.valid, at.token + at.valid, at.batch * rows.batch_step};
}

/// Waits until a stage is empty, and has its full barrier expect `bytes`. Returns the full barrier.
template <int kStages>
__device__ inline std::uint32_t producer_acquire(const PipelineState<kStages>& position, std::uint64_t* full_barriers,
                                                 std::uint64_t* empty_barriers, int bytes) {
  const std::uint32_t full = shared_address(full_barriers + position.stage);
  barrier_wait(shared_address(empty_barriers + position.stage), position.parity ^ 1);
  barrier_arrive_expect_tx(full, bytes);
  return full;
}

/// Loads kSlices slices of kColumns columns from `box` on, in one thread. Their bytes arrive at `full`,
/// in each CTA of a cluster.
template <int kSlices, int kColumns = kSliceColumns, int kCluster = 1>
__device__ inline void load_slices(std::uint32_t to, int slice_bytes, const ClippedRows& rows, BoxStart box, std::uint32_t full) {
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice, box.column += kColumns) {
    const std::uint32_t slice_at = to + slice * slice_bytes;
    const CUtensorMap* map = box.slice < rows.tile && box.column < rows.columns ? &rows.map : &rows.beyond;
    if constexpr (kCluster > 1) {
      tma_load_multicast(slice_at, map, box, full, (1 << kCluster) - 1);
    } else {
      tma_load(slice_at, map, box, full);
    }
  }
}

/// Loads a tile in one thread. `box`: coordinates without regard to strides of 0.
template <int kSlices, int kColumns>
__device__ inline void load_clipped(std::uint32_t to, int slice_bytes, const ClippedRows& rows, BoxStart box, std::uint32_t full) {
  box.row *= rows.head_step;
  box.block *= rows.batch_step;
  load_slices<kSlices, kColumns>(to, slice_bytes, rows, box, full);
}
template <int kSlices>
__device__ inline void load_clipped(std::uint32_t to, int slice_bytes, const ClippedRows& rows, TilePlace at, std::uint32_t full) {
  load_slices<kSlices>(to, slice_bytes, rows, box_of(rows, at), full);
}

/// Stores a tile in one thread, in its group of bulk copies.
template <int kSlices>
__device__ inline void store_clipped(std::uint32_t from, int slice_bytes, const ClippedRows& rows, TilePlace at) {
  if (at.valid <= 0) return;
  BoxStart box = box_of(rows, at);
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice, box.column += kSliceColumns) {
    if (box.column < rows.columns) tma_store(&rows.map, box, from + slice * slice_bytes);
  }
}

}  // namespace fovea::gpu::sm90
