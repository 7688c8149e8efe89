// SPDX-License-Identifier: Apache-2.0
/// What follows a warpgroup's last product: lse, normalisation, and the way of the results to global memory.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/warp_rows.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/gemm.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::dense {

/// The row of the query tile that is the lane's r-th.
__device__ inline int tile_row(int warpgroup, int r) {
  return warpgroup * kWarpgroupRows + thread_index() % 128 / 32 * 16 + lane_index() / 4 + 8 * r;
}

template <class Config>
class Epilogue {
 public:
  using Range = std::conditional_t<Config::k8BitValues, std::conditional_t<Config::kCodes, E4m3SumRange, E4m3Range>, FloatRange>;
  using Softmax = OnlineSoftmax<Warp, Config::kKeyTile / 2, Range>;
  static constexpr int kOut = Config::kHeadDimV / 2;

  using Params = typename Config::Params;

  __device__ Epilogue(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_) {}

  /// `out` is relative to 2^softmax.base().
  __device__ __forceinline__ void operator()(int work_slot, int buffer, Softmax softmax, float (&out)[kOut], ScoreScale scale) {
    const WorkTile& work = storage.work_tiles[work_slot];
    softmax.reduce_sum();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) factor[r] = normaliser(work, r, softmax.sum[r], softmax.base(r, scale.log2), softmax.top(r, scale.log2));
    // Values that a row does not see, or a sink that hides all: 0 times NaN is NaN.
    const bool leaks = work.full_first > work.first || work.full_last < work.last || params.sink != nullptr;
    if (wide()) {
      store_wide(work, out, factor);
    } else {
      stage<typename Config::Result>(buffer, out, factor);
    }
    if (leaks) {
      const auto share = [&](int r) { return factor[r] * softmax.sum[r] * (Config::k8Bit ? kOne / softmax.top(r, scale.log2) : 1); };
      const RowPair rows{{lanes_not_finite(out, 0), lanes_not_finite(out, 1)}, {share(0), share(1)}};
      if ((rows.lanes[0] | rows.lanes[1]) != 0) compute_again(work, buffer, rows, scale);
    }
    // Before the stores of lse, for which it would wait.
    if (!wide()) fence_shared_for_async();
    const bool second = lane_index() % 2 == 1;  // whose row this lane stores
    const float base = second ? softmax.base(1, scale.log2) : softmax.base(0, scale.log2);
    store_lse(work, second, base + Warp::log2(second ? softmax.sum[1] : softmax.sum[0]));
    hand_over(work_slot, buffer, !wide());
  }

  /// Returns the queries' buffer to the producer once the results in it have been read.
  __device__ void release_buffer() {
    if (used < 0 || thread_index() % 128 != 0) return;
    tma_store_wait_read();
    barrier_arrive(shared_address(&storage.q_empty[used]));
    used = -1;
  }

 protected:
  /// Results in the buffer leave, if they are `staged` there; nothing else needs the work tile.
  __device__ __forceinline__ void hand_over(int work_slot, int buffer, bool staged) {
    const bool elected = thread_index() % 128 == 0;
    named_sync(kWarpgroup + warpgroup, 128);
    if (staged && elected) store(storage.work_tiles[work_slot], buffer);
    if (elected) barrier_arrive(shared_address(&storage.work_empty[work_slot]));
    used = buffer;
  }

  /// Of the lane's r-th row.
  __device__ RowPlace place(const WorkTile& work, int r) const { return work.place(tile_row(warpgroup, r), params.packed_shift); }

  static constexpr int kOne = 1 << static_cast<int>(Range::kShift);  // the probability at the maximum, rounded

  /// Whether results leave as f32, from registers.
  __device__ __forceinline__ bool wide() const { return params.splits > 1 || (Config::k8Bit && params.f32_out); }

  /// What turns the accumulators of a row into its result; the sink's share is the merging kernel's where there are splits.
  /// Where a weight of `top` is the only one, not even an f32 result shows that it was rounded to kOne.
  __device__ __forceinline__ float normaliser(const WorkTile& work, int r, float sum, float base, float top) const {
    const float one = Config::k8Bit ? descale(params.v_scale, work, params.heads_per_kv) * (top / kOne) : 1;
    if (params.sink != nullptr && params.splits == 1) {
      const float sink = exp2f(fmaf(params.sink[place(work, r).head], kLog2e, -base));
      return sum == 0 ? 0 : one / (sum + sink);
    }
    return sum == 0 ? 0 : Config::k8Bit ? one / sum : __fdividef(1, sum);
  }

  /// The first two lanes of each four store that of their rows, in base 2 so far.
  __device__ __forceinline__ void store_lse(const WorkTile& work, int r, float value) const {
    const RowPlace at = place(work, r);
    float* lse = params.splits > 1 ? params.partial_lse : params.lse;
    if (lse == nullptr || lane_index() % 4 > 1 || at.token >= work.seq_q) return;
    lse[params.splits > 1 ? partial_row(work, at) : work.offset(params.lse_strides, at)] = value * kLn2;
  }
  /// Number of the row among all partial results, of a batch that is not ragged.
  __device__ std::int64_t partial_row(const WorkTile& work, RowPlace at) const {
    return (work.split * params.rows + std::int64_t{work.batch} * params.seq_q + at.token) * params.heads + at.head;
  }
  __device__ std::uint32_t staged(int buffer) const { return shared_address(storage.q[buffer]) + warpgroup * kWarpgroupRows * kSliceBytes; }

  /// Results in the place of the queries, as rows of the tile.
  template <class Result>
  __device__ __forceinline__ void stage(int buffer, const float (&out)[kOut], const float (&factor)[2]) {
    stage_rows<Result, Config::kHeadDimV>(out, factor, {staged(buffer), Config::kQuerySliceBytes});
  }

  /// One thread: a copy for each slice; rows past the sequence and columns past the head dim are out of bounds.
  __device__ __forceinline__ void store(const WorkTile& work, int buffer) {
    const int tokens = kWarpgroupRows >> params.packed_shift, token = work.token + warpgroup * tokens;
    const int valid = min(tokens, work.seq_q - token);
    if (valid <= 0) return;
    BoxStart at{0, work.head, tokens - valid, work.q_begin + token + valid, work.batch * params.out.batch_step};
#pragma unroll
    for (int slice = 0; slice < Config::kSlicesV; ++slice, at.column += kSliceColumns) {
      if (at.column < params.head_dim_v) tma_store(&params.out.map, at, staged(buffer) + slice * Config::kQuerySliceBytes);
    }
  }

  /// Where f32 results go, and the row of one.
  __device__ float* wide_out() const {
    return !Config::k8Bit || params.splits > 1 ? params.partial_out : static_cast<float*>(const_cast<void*>(params.out.data));
  }
  __device__ std::int64_t wide_offset(const WorkTile& work, RowPlace at) const {
    if (!Config::k8Bit || params.splits > 1) return partial_row(work, at) * params.head_dim_v;
    return work.offset(params.out.strides, at);
  }

  __device__ __forceinline__ void store_wide(const WorkTile& work, const float (&out)[kOut], const float (&factor)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const RowPlace at = place(work, r);
      if (at.token >= work.seq_q) continue;
      const int lane_at = lane_column(lane_index());
      store_row(wide_out() + wide_offset(work, at) + lane_at, out, r, factor[r], lane_at, params.head_dim_v);
    }
  }

  __device__ __noinline__ void compute_again(const WorkTile& work, int buffer, RowPair rows, ScoreScale scale) {
    for_rows_not_finite(rows, [&](int i, int, float share) {
      const int row = warpgroup * kWarpgroupRows + thread_index() % 128 / 32 * 16 + i;
      const RowPlace at = work.place(row, params.packed_shift);
      if (at.token >= work.seq_q) return;
      const ExactRow<Config> exact{params, work, at, Config::kKeyTile};
      float columns[exact.kColumns];
      exact(scale, columns);
#pragma unroll
      for (int c = 0; c < exact.kColumns; ++c) {
        const int column = c * 32 + lane_index();
        if (column < params.head_dim_v) put(work, buffer, row, at, column, share == 0 ? 0 : columns[c] * share);
      }
    });
  }
  __device__ void put(const WorkTile& work, int buffer, int row, RowPlace at, int column, float x) {
    if (wide()) {
      wide_out()[wide_offset(work, at) + column] = x;
    } else {
      put_staged(buffer, row, column, pack<typename Config::Result>(x, 0));
    }
  }
  /// `row`: of the query tile.
  __device__ void put_staged(int buffer, int row, int column, std::uint32_t x) const {
    const std::uint32_t slice = staged(buffer) + column / kSliceColumns * Config::kQuerySliceBytes + row % kWarpgroupRows * kSliceBytes;
    store_shared_16(slice + ((column % kSliceColumns / 8) ^ (row % 8)) * 16 + column % 8 * 2, x);
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int used = -1;  // the buffer that this warpgroup has yet to return
};

}  // namespace fovea::gpu::sm90::dense
