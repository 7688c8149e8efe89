// SPDX-License-Identifier: Apache-2.0
/// The dQ warpgroup: products of dS and K for 64 queries, which join those of other key tiles in the order of detail::GradientOrder. The
/// emitter adds them; the last key tile has the sum in its registers and stores dq.
#pragma once

#include "gpu/cuda/sm90/attention_backward/emit.cuh"
#include "gpu/cuda/sm90/fragment.cuh"
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
      products_wait<0>();
      pin(sums);
      __syncwarp();
      if (slice == Config::kSlicesQk - 1 && lane_index() == 0) barrier_arrive(shared_address(&storage.ds_empty[ring.stage]));
      const int of_slice = slice * kQueryTile * kSliceColumns + place;
      if (last) {
        if (rank > 0) add_earlier(params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile + of_slice);
        store(step, slice);
        bad |= not_finite();
      } else {
        float* const at = storage.sums + of_slice;
#pragma unroll
        for (int i = 0; i < kSums; i += 4) *reinterpret_cast<float4*>(at + i * 128) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
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
    const std::uint64_t a = operand_at(shared_address(storage.ds[ring.stage]), 16, kGroupBytes);
    const std::uint64_t b = operand_at(shared_address(storage.k) + slice * Config::kKeySliceBytes, 16, kGroupBytes);
    pin(sums);
    products_begin();
#pragma unroll
    for (int k = 0; k < Config::kKeyTile / 16; ++k) {
      Wgmma<Element, kSliceColumns>::template ss<Major::mn, Major::mn>(sums, advanced(a, k * 2 * kGroupBytes),
                                                                       advanced(b, k * 2 * kGroupBytes), k > 0);
    }
    products_commit();
  }

  __device__ __forceinline__ void add_earlier(const float* at) {
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
      const float4 earlier = __ldcg(reinterpret_cast<const float4*>(at + i * 128));
      sums[i] += earlier.x;
      sums[i + 1] += earlier.y;
      sums[i + 2] += earlier.z;
      sums[i + 3] += earlier.w;
    }
  }

  __device__ __forceinline__ void store(const Step& step, int slice) {
    const Sequence& of = storage.tile.sequence;
    const int lane = lane_index(), column = slice * kSliceColumns + lane_column(lane);
    auto* const dq = static_cast<Element*>(const_cast<void*>(params.dq.data));
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = step.query_tile * kQueryTile + thread_index() % 128 / 32 * 16 + lane / 4 + 8 * r;
      if (token >= of.seq_q) continue;
      Element* const row = dq + of.offset(params.dq.strides, of.q_begin, token, step.head) + column;
#pragma unroll
      for (int i = 2 * r; i < kSums; i += 4) {
        if (column + column_of(i) >= params.head_dim_qk) continue;
        *reinterpret_cast<std::uint32_t*>(row + column_of(i)) = pack<Element>(sums[i] * params.scale, sums[i + 1] * params.scale);
      }
    }
  }

  __device__ __forceinline__ bool not_finite() const {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kSums; ++i) zero = fmaf(sums[i], 0.0f, zero);
    return zero != 0;
  }

  const Params& params;
  Storage<Config>& storage;
  RingPosition<Config::kStages> ring;
  int handed_over = 0;
  float sums[kSums];
};

}  // namespace fovea::gpu::sm90::attention_backward
