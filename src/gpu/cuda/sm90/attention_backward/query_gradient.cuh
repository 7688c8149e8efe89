// SPDX-License-Identifier: Apache-2.0
/// The dQ warpgroup: products of dS and K for 64 queries, which join those of other key tiles in the order of detail::GradientOrder. The
/// emitter adds them; the last key tile has the sum in its registers and stores dq.
#pragma once

#include "gpu/cuda/sm90/attention_backward/emit.cuh"
#include "gpu/cuda/sm90/attention_backward/query_sums.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::attention_backward {

template <class Config>
class QueryGradient {
 public:
  __device__ QueryGradient(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void operator()() {
    barrier_wait(shared_address(&storage.kv_full), 0);
    for (int i = 0, count = storage.step_count; i < count; ++i, ring.advance()) step(storage.steps[i % Storage<Config>::kSteps]);
    hand_over(-1, 0);
    named_arrive(kDone, 128 * (Config::kScoreWarpgroups + 1));
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kSums = kSliceColumns / 2;  // accumulators of a lane

  __device__ __forceinline__ void step(const Step& step) {
    barrier_wait(shared_address(&storage.ds_full[ring.stage]), ring.parity);
    const bool last = uniform(step.last);
    const int cell = uniform(step.cell), rank = uniform(step.rank);
    const int place = thread_index() % 128 * 4;  // of this thread's sums, four at a time
    bool bad = false;
    if (last && rank > 0) {
      if (place == 0) await_turn(params.turns + cell, rank);
      named_sync(kWarpgroup + Config::kScoreWarpgroups, 128);
    }
    if (!last) barrier_wait(shared_address(&storage.sums_empty), handed_over % 2 ^ 1);
#pragma unroll
    for (int slice = 0; slice < Config::kSlicesQk; ++slice) {
      multiply(slice);
      wgmma_wait<0>();
      fence_operand(sums);
      __syncwarp();
      if (slice == Config::kSlicesQk - 1 && lane_index() == 0) barrier_arrive(shared_address(&storage.ds_empty[ring.stage]));
      const int of_slice = slice * kQueryTile * kSliceColumns + place;
      if (last) {
        if (rank > 0) add_sums(params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile + of_slice, sums);
        store_query_gradient<Element>(params, storage.tile.sequence, step, slice * kSliceColumns, sums);
        bad |= not_finite(sums);
      } else {
        put_sums(storage.sums + of_slice, sums);
      }
    }
    if (!last) hand_over(cell, rank);
    if (params.leaks && bad) params.dq_not_finite[cell] = 1;
  }

  /// To the emitter.
  __device__ __forceinline__ void hand_over(int cell, int rank) {
    if (cell < 0) barrier_wait(shared_address(&storage.sums_empty), handed_over % 2 ^ 1);
    ++handed_over;
    if (thread_index() % 128 == 0) {
      storage.emitted_cell = cell;
      storage.emitted_rank = rank;
    }
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.sums_full));
  }

  /// sums (64 queries x 64 channels) = dS^T (64 queries x key tile) K (key tile x 64 channels)
  __device__ __forceinline__ void multiply(int slice) {
    const std::uint64_t a = smem_descriptor(shared_address(storage.ds[ring.stage]), 16, kGroupBytes);
    const std::uint64_t b = smem_descriptor(shared_address(storage.k) + slice * Config::kKeySliceBytes, 16, kGroupBytes);
    fence_operand(sums);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kKeyTile / 16; ++k) {
      Wgmma<Element, kSliceColumns>::template ss<Major::mn, Major::mn>(sums, advance_descriptor(a, k * 2 * kGroupBytes),
                                                                       advance_descriptor(b, k * 2 * kGroupBytes), k > 0);
    }
    wgmma_commit();
  }

  const Params& params;
  Storage<Config>& storage;
  PipelineState<Config::kStages> ring;
  int handed_over = 0;
  float sums[kSums];
};

}  // namespace fovea::gpu::sm90::attention_backward
