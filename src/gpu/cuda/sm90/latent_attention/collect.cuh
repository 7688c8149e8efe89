// SPDX-License-Identifier: Apache-2.0
/// What other parts have of a part's last request comes to where the keys were.
#pragma once

#include "gpu/cuda/sm90/global_memory.cuh"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

/// By one warp, a lane for each math warp. A part's results come when they are told, and the math is done with the tiles: `await_tile(i)`
/// returns once it is done with the i-th for good.
template <class Storage, class AwaitTile>
__device__ __forceinline__ void collect(const Params& params, Storage& storage, const Job& job, AwaitTile&& await_tile) {
  if (!job.collects) return;
  const int lane = lane_index();
  const bool wanted = lane < kMathWarps && has_rows(params, job.request, blockIdx.x, lane);
  const int first = own_part(params) + 1;
#pragma unroll 1
  for (int part = first; part < job.parts.end; ++part) {
    if (wanted) {
      int* flag = told(params, part) + lane;
      flag_await(flag);
      *flag = 0;
      fence_global_for_async();
    }
    __syncwarp();
    if (part > first) barrier_wait(shared_address(&storage.added), (part - first - 1) & 1);
    const PartialPlace place(params, detail::SplitSchedule::slot(part, true), blockIdx.y, blockIdx.x, lane);
#pragma unroll 1
    for (int buffer = 0; buffer < 2; ++buffer) {
      const std::uint32_t arrived = shared_address(&storage.collected[buffer]), to = shared_address(storage.k[buffer]);
      if (part == first) await_tile(buffer);
      const int row_bytes = buffer == 0 && wanted ? RowStats::bytes(params) : 0, bytes = wanted ? Collected::kBytes : 0;
      if (wanted) copy_bulk(to + lane * bytes, place.sums() + buffer * Collected::kPieces * kPieceWords * 32, bytes, arrived);
      if (row_bytes > 0) copy_bulk(to + Collected::kRowsAt + lane * Collected::kRowBytes, place.row_stats(), row_bytes, arrived);
      barrier_arrive_expect(arrived, bytes + row_bytes);
    }
  }
  __syncwarp();
}

}  // namespace fovea::gpu::sm90::latent
