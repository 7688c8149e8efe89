// SPDX-License-Identifier: Apache-2.0
/// Copies other parts' partial results of this part's last sequence to where its keys were.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

/// By one warp, a lane for each math warp. A lane copies once the other part has set its flag and `await_tile(i)` has returned: consumers
/// no longer read the i-th tile.
template <class Storage, class AwaitTile>
__device__ __forceinline__ void load_partials(const Params& params, Storage& storage, const WorkTile& work, AwaitTile&& await_tile) {
  if (!work.reduces) return;
  const int lane = lane_index();
  const bool wanted = lane < kMathWarps && has_rows(params, work.sequence, blockIdx.x, lane);
  const int first = own_part(params) + 1;
#pragma unroll 1
  for (int part = first; part < work.parts.end; ++part) {
    if (wanted) {
      int* flag = ready_flags(params, part) + lane;
      flag_wait(flag, 1);
      *flag = 0;
      fence_global_for_async();
    }
    __syncwarp();
    if (part > first) barrier_wait(shared_address(&storage.partial_empty), (part - first - 1) & 1);
    const PartialPlace place(params, detail::SplitSchedule::slot(part, true), blockIdx.y, blockIdx.x, lane);
#pragma unroll 1
    for (int buffer = 0; buffer < 2; ++buffer) {
      const std::uint32_t arrived = shared_address(&storage.partial_full[buffer]), to = shared_address(storage.k[buffer]);
      if (part == first) await_tile(buffer);
      const int row_bytes = buffer == 0 && wanted ? RowStats::bytes(params) : 0, bytes = wanted ? StagedPartial::kBytes : 0;
      if (wanted) bulk_load(to + lane * bytes, place.sums() + buffer * StagedPartial::kPieces * kPieceWords * 32, bytes, arrived);
      if (row_bytes > 0) bulk_load(to + StagedPartial::kRowsAt + lane * StagedPartial::kRowBytes, place.row_stats(), row_bytes, arrived);
      barrier_arrive_expect_tx(arrived, bytes + row_bytes);
    }
  }
  __syncwarp();
}

}  // namespace fovea::gpu::sm90::latent
