// SPDX-License-Identifier: Apache-2.0
/// A score warpgroup: 64 keys, whose dK and dV stay in its registers. Rows of its accumulators are keys, columns are queries or channels.
#pragma once

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::attention_backward {

template <class Config>
class Scores {
 public:
  __device__ Scores(const Params& params_, Storage<Config>& storage_, int warpgroup_)
      : params(params_), storage(storage_), warpgroup(warpgroup_) {}

  __device__ __forceinline__ void operator()(int ticket) {
#pragma unroll
    for (int i = 0; i < kDk; ++i) dk[i] = 0;
#pragma unroll
    for (int i = 0; i < kDv; ++i) dv[i] = 0;
    barrier_wait(shared_address(&storage.kv_full), 0);
    const detail::GradientOrder order = order_of(params, storage.tile.sequence);
    low = order.low;
    high = order.high;
    for (int i = 0, count = storage.step_count; i < count; ++i, ring.advance()) step(i);
    store(ticket);
  }

 private:
  using Element = typename Config::Element;
  static constexpr int kScores = kQueryTile / 2, kDk = Config::kHeadDimQk / 2, kDv = Config::kHeadDimV / 2;  // accumulators of a lane
  static constexpr int kPart = 64 * Config::kRowBytes;  // of a slice: the warpgroup's keys

  __device__ __forceinline__ void step(int index) {
    const RowStats& stats = storage.stats[ring.stage];
    barrier_wait(shared_address(&storage.q_full[ring.stage]), ring.parity);
    multiply_rows<Config::kHeadDimQk>(storage.k, storage.q[ring.stage]);
    products_wait<0>();
    pin(scores);
    exponentiate(stats);
    const int difference =
        storage.tile.begin() + warpgroup * 64 - uniform(storage.steps[index % Storage<Config>::kSteps].query_tile) * kQueryTile;
    if ((difference - (kQueryTile - 1) < low) | (difference + 63 > high)) mask(difference);
    round();
    barrier_wait(shared_address(&storage.dout_full[ring.stage]), ring.parity);
    multiply_rows<Config::kHeadDimV>(storage.v, storage.dout[ring.stage]);
    accumulate<Config::kHeadDimV>(dv, p, storage.dout[ring.stage]);
    products_wait<1>();
    pin(scores);
    differentiate(stats);
    store_scores();
    accumulate<Config::kHeadDimQk>(dk, ds, storage.q[ring.stage]);
    products_wait<0>();
    pin(dv);
    pin(dk);
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.empty[ring.stage]));
  }

  // ---- products -----------------------------------------------------------------------------------------------------------------

  /// scores (64 keys x 64 queries) = keys (64 x kDim) queries (64 x kDim)^T
  template <int kDim>
  __device__ __forceinline__ void multiply_rows(const std::byte* keys, const std::byte* queries) {
    const std::uint64_t a = operand_at(shared_address(keys) + warpgroup * kPart, 16, kGroupBytes);
    const std::uint64_t b = operand_at(shared_address(queries), 16, kGroupBytes);
    pin(scores);
    products_begin();
#pragma unroll
    for (int k = 0; k < kDim / 16; ++k) {
      const int slice = k / 4, inside = k % 4 * 32;
      Wgmma<Element, kQueryTile>::template ss<Major::k>(scores, advanced(a, slice * Config::kKeySliceBytes + inside),
                                                        advanced(b, slice * Config::kQuerySliceBytes + inside), k > 0);
    }
    products_commit();
  }

  /// sum (64 keys x kDim) += weights (64 keys x 64 queries) queries (64 x kDim)
  template <int kDim>
  __device__ __forceinline__ void accumulate(float (&sum)[kDim / 2], std::uint32_t (&weights)[kScores / 2], const std::byte* queries) {
    const std::uint64_t b = operand_at(shared_address(queries), Config::kQuerySliceBytes, kGroupBytes);
    pin(weights);
    pin(sum);
    products_begin();
#pragma unroll
    for (int k = 0; k < kQueryTile / 16; ++k) {
      Wgmma<Element, kDim>::template rs<Major::mn>(sum, &weights[4 * k], advanced(b, k * 2 * kGroupBytes), true);
    }
    products_commit();
  }

  // ---- between them -------------------------------------------------------------------------------------------------------------

  /// A value for each query: those of this lane's columns. Accumulators i and i + 1 have the ones at column_of(i).
  static __device__ __forceinline__ const float* of_columns(const float (&of)[kQueryTile]) { return of + lane_column(lane_index()); }
  static __device__ __forceinline__ float2 pair_at(const float* of, int i) { return *reinterpret_cast<const float2*>(of + column_of(i)); }

  /// Scores become probabilities; with a softcap, their derivative's factor too.
  __device__ __forceinline__ void exponentiate(const RowStats& stats) {
    if (uniform(stats.natural) != 0) {
      exponentiate_as<true>(stats);
    } else {
      exponentiate_as<false>(stats);
    }
  }
  template <bool kNatural>
  __device__ __forceinline__ void exponentiate_as(const RowStats& stats) {
    const float* of = of_columns(stats.minus_lse);
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      const float2 minus_lse = pair_at(of, i);
      scores[i] = probability<kNatural>(i, scores[i], minus_lse.x);
      scores[i + 1] = probability<kNatural>(i + 1, scores[i + 1], minus_lse.y);
    }
  }
  template <bool kNatural>
  __device__ __forceinline__ float probability(int i, float score, float minus_lse) {
    float scale = kNatural ? params.scale : params.scale_log2;
    if constexpr (Config::kSoftcap) {
      // tanh(x) = 1 - 2 / (exp(2 x) + 1)
      const float tanh = 1 - __fdividef(2, Warp::exp2(score * params.inv_softcap) + 1);
      slope[i] = 1 - tanh * tanh;
      score = tanh;
      scale = kNatural ? params.softcap : params.softcap * kLog2e;
    }
    const float exponent = kNatural ? __fadd_rn(__fmul_rn(score, scale), minus_lse) * kLog2e : fmaf(score, scale, minus_lse);
    return Warp::exp2(min_or_nan(exponent, 0));
  }
  static __device__ __forceinline__ float min_or_nan(float a, float b) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
  }

  /// `first_difference`: of key and query, at the first of both.
  __device__ __forceinline__ void mask(int first_difference) {
    const int lane = lane_index(), row = thread_index() % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int difference = first_difference + row + 8 * r - lane_column(lane);
      const int begin = difference - high, end = difference - low;
#pragma unroll
      for (int i = 0; i < kScores; ++i) {
        if (row_of(i) == r && (column_of(i) < begin || column_of(i) > end)) scores[i] = 0;
      }
    }
  }

  __device__ __forceinline__ void round() {
#pragma unroll
    for (int i = 0; i < kScores / 2; ++i) p[i] = pack<Element>(scores[2 * i], scores[2 * i + 1]);
    if constexpr (Config::kSoftcap) {
#pragma unroll
      for (int i = 0; i < kScores / 2; ++i) ds[i] = pack<Element>(scores[2 * i] * slope[2 * i], scores[2 * i + 1] * slope[2 * i + 1]);
    }
  }

  /// ds = p (dp - delta), with the slope of the softcap.
  __device__ __forceinline__ void differentiate(const RowStats& stats) {
    const float* of = of_columns(stats.delta);
#pragma unroll
    for (int i = 0; i < kScores; i += 2) {
      const float2 delta = pair_at(of, i), weight = unpack<Element>(Config::kSoftcap ? ds[i / 2] : p[i / 2]);
      ds[i / 2] = pack<Element>(weight.x * (scores[i] - delta.x), weight.y * (scores[i + 1] - delta.y));
    }
  }

  __device__ __forceinline__ void store_scores() {
    const std::uint32_t warp_rows =
        shared_address(storage.ds[ring.stage]) + warpgroup * kPart + thread_index() % 128 / 32 * 16 * Config::kRowBytes;
    barrier_wait(shared_address(&storage.ds_empty[ring.stage]), ring.parity ^ 1);
    store_swizzled<kQueryTile>(warp_rows, Config::kScoreBytes, lane_index(), ds);
    fence_shared_for_async();
    __syncwarp();
    if (lane_index() == 0) barrier_arrive(shared_address(&storage.ds_full[ring.stage]));
  }

  // ---- results ------------------------------------------------------------------------------------------------------------------

  __device__ __forceinline__ void store(int ticket) {
    if (params.leaks && (not_finite(dk) || not_finite(dv))) params.dkv_not_finite[ticket] = 1;
    named_sync(kDone, 128 * (Config::kScoreWarpgroups + 1));
    stage<Config::kHeadDimV>(dv, 1, storage.v);
    stage<Config::kHeadDimQk>(dk, params.scale, storage.k);
    fence_shared_for_async();
    named_sync(kWarpgroup + warpgroup, 128);
    if (thread_index() % 128 != 0) return;
    const KeyTile& tile = storage.tile;
    const int token = tile.begin() + warpgroup * 64;
    const TilePlace at{tile.sequence.batch, tile.kv_head, tile.sequence.k_begin + token, min(64, tile.sequence.seq_k - token)};
    store_clipped<Config::kSlicesV>(shared_address(storage.v) + warpgroup * kPart, Config::kKeySliceBytes, params.dv, at);
    store_clipped<Config::kSlicesQk>(shared_address(storage.k) + warpgroup * kPart, Config::kKeySliceBytes, params.dk, at);
    stores_wait_read();
  }
  template <int kDim>
  __device__ __forceinline__ void stage(const float (&sum)[kDim / 2], float factor, const std::byte* to) {
    std::uint32_t pairs[kDim / 4];
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) pairs[i] = pack<Element>(sum[2 * i] * factor, sum[2 * i + 1] * factor);
    const std::uint32_t warp_rows = shared_address(to) + warpgroup * kPart + thread_index() % 128 / 32 * 16 * Config::kRowBytes;
    store_swizzled<kDim>(warp_rows, Config::kKeySliceBytes, lane_index(), pairs);
  }
  template <int kCount>
  static __device__ __forceinline__ bool not_finite(const float (&sum)[kCount]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) zero = fmaf(sum[i], 0.0f, zero);
    return zero != 0;
  }

  const Params& params;
  Storage<Config>& storage;
  const int warpgroup;
  int low = 0, high = 0;  // the band
  RingPosition<Config::kStages> ring;
  float scores[kScores], dk[kDk], dv[kDv];
  std::uint32_t p[kScores / 2], ds[kScores / 2];
  float slope[Config::kSoftcap ? kScores : 1];
};

}  // namespace fovea::gpu::sm90::attention_backward
