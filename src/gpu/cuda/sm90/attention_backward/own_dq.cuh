// SPDX-License-Identifier: Apache-2.0
/// Half of dQ by each score warpgroup, where registers leave no room for a warpgroup of its own: products of dS and K for 64 queries, one
/// slice of channels and half of the middle one.
#pragma once

#include "gpu/cuda/sm90/attention_backward/emit.cuh"
#include "gpu/cuda/sm90/attention_backward/query_sums.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::attention_backward {

struct NoDq {
  template <class Storage>
  __device__ NoDq(const Params&, Storage&, int) {}
};

template <class Config>
class OwnDq {
 public:
  __device__ OwnDq(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_) {}

  /// Once both warpgroups have stored their dS. The slice is handed over beside the products of the middle one.
  __device__ __forceinline__ void operator()(int index, const Step& step) {
    const bool last = uniform(step.last);
    const int cell = uniform(step.cell), rank = uniform(step.rank);
    const int thread = thread_index() % 128, place = warpgroup * kSumsOfWarpgroup + thread * 4;
    const std::uint32_t keys = shared_address(storage.k);
    barrier_wait(shared_address(storage.ds_full), index % 2);
    multiply_columns<kSliceColumns>(slice, keys + 2 * warpgroup * Config::kKeySliceBytes);
    multiply_columns<kSliceColumns / 2>(middle, keys + Config::kKeySliceBytes + warpgroup * kSliceBytes / 2);
    if (!last) barrier_wait(shared_address(&storage.sums_empty), handed_over % 2 ^ 1);
    wgmma_wait<1>();
    fence_operand(slice);
    if (!last) put_sums(storage.sums + place, slice);
    wgmma_wait<0>();
    fence_operand(middle);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(storage.ds_empty));
    if (!last) {
      put_sums(storage.sums + place + kSlice * 128, middle);
      hand_over(cell, rank);
      return;
    }
    if (rank > 0) {
      if (thread == 0) await_turn(params.turns + cell, rank);
      named_sync(kWarpgroup + warpgroup, 128);
      const float* const earlier = params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile + place;
      add_sums(earlier, slice);
      add_sums(earlier + kSlice * 128, middle);
    }
    store_query_gradient<Element>(params, storage.tile.sequence, step, 2 * warpgroup * kSliceColumns, slice);
    store_query_gradient<Element>(params, storage.tile.sequence, step, kSliceColumns + warpgroup * kSliceColumns / 2, middle);
    if (params.leaks && (not_finite(slice) || not_finite(middle))) params.dq_not_finite[cell] = 1;
  }

  /// The emitter ends.
  __device__ __forceinline__ void end() {
    barrier_wait(shared_address(&storage.sums_empty), handed_over % 2 ^ 1);
    hand_over(-1, 0);
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kSlice = kSliceColumns / 2, kMiddle = kSliceColumns / 4;  // accumulators of a lane
  static constexpr int kSumsOfWarpgroup = 128 * (kSlice + kMiddle);
  static_assert(Config::kSlicesQk == 3 && 2 * kSumsOfWarpgroup == Config::kSumsOfTile);

  /// sums (64 queries x kColumns) = dS^T (64 queries x key tile) K (key tile x kColumns)
  template <int kColumns>
  __device__ __forceinline__ void multiply_columns(float (&sums)[kColumns / 2], std::uint32_t columns) {
    const std::uint64_t a = smem_descriptor(shared_address(storage.ds), 16, kGroupBytes), b = smem_descriptor(columns, 16, kGroupBytes);
    fence_operand(sums);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < Config::kKeyTile / 16; ++k) {
      Wgmma<Element, kColumns>::template ss<Major::mn, Major::mn>(sums, advance_descriptor(a, k * 2 * kGroupBytes),
                                                                  advance_descriptor(b, k * 2 * kGroupBytes), k > 0);
    }
    wgmma_commit();
  }

  __device__ __forceinline__ void hand_over(int cell, int rank) {
    ++handed_over;
    if (thread_index() == 0) {
      storage.emitted_cell = cell;
      storage.emitted_rank = rank;
    }
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.sums_full));
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int handed_over = 0;
  float slice[kSlice], middle[kMiddle];
};

}  // namespace fovea::gpu::sm90::attention_backward
