// SPDX-License-Identifier: Apache-2.0
/// Loads the query rows of a tile into shared memory: query token major, head minor. Rows past the end are zeros.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"
#include "gpu/cuda/sm90/tma.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// The load warps from the kFirst-th on call this.
template <class Config, int kFirst = 0>
struct QueryLoader {
  using Element = typename Config::Element;
  static constexpr int kWarps = Config::kLoadThreads / 32 - kFirst;

  const Params& params;
  Storage<Config>& storage;
  const Sequence& sequence;

  __device__ void operator()() const { params.tma_queries ? copy() : gather(); }

  /// Prefetches all columns into L2.
  __device__ void prefetch() const {
    for (int row = warp() * 32 + lane_index(); row < kQueryTile; row += kWarps * 32) {
      const Element* from = query_row<Element>(params, sequence, blockIdx.x * kQueryTile + row);
      if (from == nullptr) continue;
      for (int column = 0; column < Config::kHeadDim; column += 128 / sizeof(Element)) prefetch_line(from + column);
      prefetch_line(from + Config::kHeadDim - 1);
    }
  }

 private:
  static constexpr int kOutside = 1 << 30;  // a coordinate past every end

  static __device__ int warp() { return thread_index() % Config::kLoadThreads / 32 - kFirst; }  // recomputed, because registers are short

  /// Eight rows are eight heads of one token: one box.
  __device__ void copy() const {
    const std::uint32_t full = shared_address(&storage.q_full);
    const int lane = lane_index();
    if (warp() == 0 && lane == 0) {
      barrier_arrive_expect_tx(full, kQueryTile / 8 * Config::kQueryGroup);
    } else {
      barrier_arrive(full);
    }
    __syncwarp();
    if (warp() != 0 || lane >= kQueryTile / kBoxRows) return;
    const PackedRow row(params, blockIdx.y, blockIdx.x * kQueryTile + lane * kBoxRows);
    const BoxStart at{.column = 0,
                      .row = static_cast<int>(row.head),
                      .slice = 0,
                      .head = row.token < sequence.q_rows ? sequence.q_begin + row.token : kOutside,
                      .block = sequence.batch};
    tma_load(shared_address(storage.q) + lane * Config::kQueryGroup, &params.queries, at, full);
  }

  /// Eight lanes copy the eight chunks of a slice of one row: 128 contiguous bytes.
  __device__ void gather() const {
    const std::uint32_t to = shared_address(storage.q);
    const int lane = lane_index();
    for (int row = warp() * 4 + lane / 8; row < kQueryTile; row += kWarps * 4) {
      const Element* from = query_row<Element>(params, sequence, blockIdx.x * kQueryTile + row);
      const bool valid = from != nullptr;
      from = valid ? from + lane % 8 * 8 : static_cast<const Element*>(params.q);
      const std::uint32_t row_at = to + row / 8 * Config::kQueryGroup + row % 8 * 128 + ((lane % 8) ^ (row % 8)) * 16;
#pragma unroll 1
      for (int slice = 0; slice < Config::kSharedSlices; ++slice) {
        copy_async(row_at + slice * kGroupBytes, from + (valid ? slice * kSlice : 0), valid);
      }
    }
    copy_async_wait_all();
    fence_shared_for_async();
    barrier_arrive(shared_address(&storage.q_full));
  }
};

}  // namespace fovea::gpu::sm90::latent
