// SPDX-License-Identifier: Apache-2.0
/// dQ of the kernel that computes all gradients. A CTA has the dQ of its keys for 64 queries at a time;
/// key tiles add theirs in the order of detail::GradientOrder, which dq_semaphore enforces.
///
/// Emitters add all but the last share to dq_sums in global memory. The last key tile adds dq_sums to
/// its accumulators and stores dq.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/common/gradient/lists.hpp"
#include "gpu/cuda/sm90/attention_backward/score_math.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/tma.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::attention_backward {

// ---- the semaphore of a query tile ----------------------------------------------------------------

/// Waits until `rank` key tiles have added their dQ. Ordinary loads and bulk copies see it then.
__device__ inline void dq_semaphore_wait(const int* semaphore, int rank) {
  flag_wait(semaphore, rank);
  fence_global_for_async();
}

// ---- emitters -------------------------------------------------------------------------------------

/// Adds the sums of a stage to dq_sums, in one thread by bulk copies, until a cell of -1 comes. Each
/// stage has an emitter: waiting for a turn, adding and passing it on take about as long as a step.
template <class Config>
__device__ inline void emit_dq(const Params& params, Storage<Config>& storage, int stage) {
  const std::uint32_t from = shared_address(storage.sums[stage]);
  for (std::uint32_t parity = 0;; parity ^= 1) {
    barrier_wait(shared_address(&storage.sums_full[stage]), parity);
    const auto [cell, rank] = storage.emissions[stage];
    if (cell < 0) return;
    float* const to = params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile;
    if (rank == 0) {
      bulk_store(to, from, sizeof(storage.sums[stage]));
    } else {
      dq_semaphore_wait(params.dq_semaphore + cell, rank);
      bulk_reduce_add(to, from, sizeof(storage.sums[stage]));
    }
    tma_store_wait_read();
    barrier_arrive(shared_address(&storage.sums_empty[stage]));
    tma_store_wait();
    flag_set(params.dq_semaphore + cell, rank + 1);
  }
}

/// Hands the sums in shared memory to the emitter, by the kThreads threads that have stored them.
template <int kThreads, class Config>
__device__ __forceinline__ void hand_to_emitter(Storage<Config>& storage, int stage, Emission emission) {
  if (thread_index() % kThreads == 0) storage.emissions[stage] = emission;
  fence_shared_for_async();
  __syncwarp();
  if (lane_index() == 0) barrier_arrive(shared_address(&storage.sums_full[stage]));
}

// ---- accumulators ---------------------------------------------------------------------------------

/// sums (64 queries x kColumns) = dS^T (64 queries x keys) K (keys x kColumns). `ds` and `columns`: from the first key on.
template <class Config, int kColumns, int kKeys = Config::kKeyTile>
__device__ __forceinline__ void gemm_dq(float (&sums)[kColumns / 2], const std::byte* ds, std::uint32_t columns) {
  const std::uint64_t a = smem_descriptor(shared_address(ds), 16, kGroupBytes);
  const std::uint64_t b = smem_descriptor(columns, Config::kKeySliceBytes, kGroupBytes);
  fence_operand(sums);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) {
    Wgmma<typename Config::Element, kColumns>::template ss<Major::mn, Major::mn>(sums, advance_descriptor(a, k * 2 * kGroupBytes),
                                                                                 advance_descriptor(b, k * 2 * kGroupBytes), k > 0);
  }
  wgmma_commit();
}

// Order of sums in memory: [accumulators / 4][thread of the warpgroup][4]. `at`: the thread's first.
template <int kCount>
__device__ __forceinline__ void store_sums(float* at, const float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) *reinterpret_cast<float4*>(at + i * 128) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
}
template <int kCount>
__device__ __forceinline__ void add_sums(const float* at, float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 earlier = __ldcg(reinterpret_cast<const float4*>(at + i * 128));
    sums[i] += earlier.x;
    sums[i + 1] += earlier.y;
    sums[i + 2] += earlier.z;
    sums[i + 3] += earlier.w;
  }
}

/// Stores complete sums, scaled, as dq. `column`: of dq, the first of these sums.
template <class Element, int kCount>
__device__ __forceinline__ void store_dq(const Params& params, const Sequence& of, const Step& step, int column,
                                         const float (&sums)[kCount]) {
  column += lane_column(lane_index());
  auto* const dq = static_cast<Element*>(const_cast<void*>(params.dq.data));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = step.query_tile * kQueryTile + lane_row() + 8 * r;
    if (token >= of.seq_q) continue;
    Element* const row = dq + of.offset(params.dq.strides, of.q_begin, token, step.head) + column;
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      if (column + column_of(i) >= params.head_dim_qk) continue;
      *reinterpret_cast<std::uint32_t*>(row + column_of(i)) = pack<Element>(sums[i] * params.scale, sums[i + 1] * params.scale);
    }
  }
}

// ---- dQ in a warpgroup of its own -----------------------------------------------------------------

/// The dQ warpgroup: kDqColumns channels at a time.
template <class Config>
class DqWarpgroup {
 public:
  __device__ DqWarpgroup(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {}

  __device__ __forceinline__ void operator()() {
    barrier_wait(shared_address(&storage.kv_full), 0);
    for (int i = 0, count = storage.step_count; i < count; ++i, ring.advance()) step(storage.steps[i % Storage<Config>::kSteps]);
    named_arrive(kDone, 128 * (Config::kScoreWarpgroups + 1));
    for (int i = 0; i < Config::kSumsStages; ++i) {
      wait_for_emitter();
      hand_over({.cell = -1, .rank = 0});
    }
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kColumns = Config::kDqColumns, kParts = Config::kHeadDimQk / kColumns;
  static_assert(kParts == 1 || kColumns == kSliceColumns);

  __device__ __forceinline__ void step(const StepOf<Config>& step) {
    barrier_wait(shared_address(&storage.ds_full[ring.stage]), ring.parity);
    const bool last = uniform(step.last);
    const int cell = uniform(step.cell), rank = uniform(step.rank);
    const int place = thread_index() % 128 * 4;  // of this thread's sums, four at a time
    bool bad = false;
    if (last && rank > 0) {
      if (place == 0) dq_semaphore_wait(params.dq_semaphore + cell, rank);
      named_sync(kWarpgroup + Config::kScoreWarpgroups, 128);
    }
    if (!last) wait_for_emitter();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      multiply(step, shared_address(storage.k) + part * Config::kKeySliceBytes);
      wgmma_wait<0>();
      fence_operand(sums);
      __syncwarp();
      if (part == kParts - 1 && lane_index() == 0) barrier_arrive(shared_address(&storage.ds_empty[ring.stage]));
      const int of_part = part * kQueryTile * kColumns + place;
      if (last) {
        if (rank > 0) add_sums(params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile + of_part, sums);
        store_dq<Element>(params, storage.tile.sequence, step, part * kColumns, sums);
        bad |= not_finite(sums);
      } else {
        store_sums(storage.sums[sums_ring.stage] + of_part, sums);
      }
    }
    if (!last) hand_over({cell, rank});
    if (params.leaks && bad) params.dq_not_finite[cell] = 1;
  }

  /// Issues dQ of the keys of a step.
  __device__ __forceinline__ void multiply([[maybe_unused]] const StepOf<Config>& step, std::uint32_t columns) {
    const std::byte* const ds = storage.ds[ring.stage];
    if constexpr (Config::kLists) {
      constexpr int kUnitBytes = kUnitKeys * kSliceBytes;
      const unsigned listed = uniform(step.listed);
      if (listed != 3) {
        const int first = listed == 2 ? kUnitBytes : 0;
        return gemm_dq<Config, kColumns, kUnitKeys>(sums, ds + first, columns + first);
      }
    }
    gemm_dq<Config, kColumns>(sums, ds, columns);
  }

  __device__ __forceinline__ void wait_for_emitter() {
    barrier_wait(shared_address(&storage.sums_empty[sums_ring.stage]), sums_ring.parity ^ 1);
  }
  __device__ __forceinline__ void hand_over(Emission emission) {
    hand_to_emitter<128>(storage, sums_ring.stage, emission);
    sums_ring.advance();
  }

  const Params& params;
  Storage<Config>& storage;
  PipelineState<Config::kStages> ring;
  PipelineState<Config::kSumsStages> sums_ring;
  float sums[kColumns / 2];
};

// ---- dQ in the score warpgroups -------------------------------------------------------------------

/// Half of dQ in each score warpgroup, where registers leave no room for a dQ warpgroup: one slice of
/// channels, and half of the middle slice.
template <class Config>
class ScoreWarpgroupDq {
 public:
  __device__ ScoreWarpgroupDq(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_) {}

  /// Computes dQ once both warpgroups have stored their dS. The slice is stored beside the MMAs of the
  /// middle one.
  __device__ __forceinline__ void operator()(int index, const Step& step) {
    const bool last = uniform(step.last);
    const int cell = uniform(step.cell), rank = uniform(step.rank);
    const int thread = thread_index() % 128, place = warpgroup * kSumsOfWarpgroup + thread * 4;
    const std::uint32_t keys = shared_address(storage.k);
    barrier_wait(shared_address(storage.ds_full), index % 2);
    gemm_dq<Config, kSliceColumns>(slice, storage.ds[0], keys + 2 * warpgroup * Config::kKeySliceBytes);
    gemm_dq<Config, kSliceColumns / 2>(middle, storage.ds[0], keys + Config::kKeySliceBytes + warpgroup * kSliceBytes / 2);
    if (!last) wait_for_emitter();
    wgmma_wait<1>();
    fence_operand(slice);
    if (!last) store_sums(storage.sums[0] + place, slice);
    wgmma_wait<0>();
    fence_operand(middle);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(storage.ds_empty));
    if (!last) {
      store_sums(storage.sums[0] + place + kSlice * 128, middle);
      hand_over({cell, rank});
      return;
    }
    if (rank > 0) {
      if (thread == 0) dq_semaphore_wait(params.dq_semaphore + cell, rank);
      named_sync(kWarpgroup + warpgroup, 128);
      const float* const earlier = params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile + place;
      add_sums(earlier, slice);
      add_sums(earlier + kSlice * 128, middle);
    }
    store_dq<Element>(params, storage.tile.sequence, step, 2 * warpgroup * kSliceColumns, slice);
    store_dq<Element>(params, storage.tile.sequence, step, kSliceColumns + warpgroup * kSliceColumns / 2, middle);
    if (params.leaks && (not_finite(slice) || not_finite(middle))) params.dq_not_finite[cell] = 1;
  }

  /// Ends the emitter.
  __device__ __forceinline__ void end() {
    wait_for_emitter();
    hand_over({.cell = -1, .rank = 0});
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kSlice = kSliceColumns / 2, kMiddle = kSliceColumns / 4;  // accumulators of a lane
  static constexpr int kSumsOfWarpgroup = 128 * (kSlice + kMiddle);
  static_assert(Config::kSlicesQk == 3 && 2 * kSumsOfWarpgroup == Config::kSumsOfTile);

  __device__ __forceinline__ void wait_for_emitter() { barrier_wait(shared_address(storage.sums_empty), handed_over % 2 ^ 1); }
  __device__ __forceinline__ void hand_over(Emission emission) {
    ++handed_over;
    hand_to_emitter<256>(storage, 0, emission);
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int handed_over = 0;
  float slice[kSlice], middle[kMiddle];
};

/// ScoreWarpgroupDq of the other kernels.
struct NoDq {
  template <class Storage>
  __device__ NoDq(const Params&, Storage&, int) {}
};

}  // namespace fovea::gpu::sm90::attention_backward
