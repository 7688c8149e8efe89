// SPDX-License-Identifier: Apache-2.0
/// Accumulators of a math warpgroup become rows of the result or a partial result at the end of a work tile.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/sm90/latent_attention/output.cuh"
#include "gpu/cuda/sm90/latent_attention/partial.cuh"
#include "gpu/cuda/sm90/tma.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// The results of one warpgroup. Sums, maxima and largest scores are those of this thread's two rows.
template <class Element>
struct Results {
  const Params& params;
  float (&out)[128];  // accumulators: 64 rows x 256 columns
  float (&sum)[2];
  float (&maximum)[2];
  float (&largest)[2];
  float scale_log2;
  int half;          // of the columns
  bool has_largest;  // whether this warpgroup has the largest scores of all keys

  __device__ void store(const Sequence& sequence) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const OutputRow row(params, sequence, blockIdx.y, blockIdx.x * kQueryTile + first_row() + 8 * r);
      const float normalise = row.normalise(params, sum[r], maximum[r] * scale_log2);
#pragma unroll
      for (int i = 0; i < 32; i += 2) {
        float x[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) x[j] = out[4 * (i + j / 2) + 2 * r + j % 2] * normalise;
        row.template store<Element>(half * (kValueDim / 2) + 8 * i, lane_index(), x);
      }
      if (lane_index() % 4 != 0) continue;
      if (half == 0) row.store_lse(params, lse_of(sum[r], maximum[r] * scale_log2));
      if (has_largest) row.store_largest(params, largest[r], scale_log2);
    }
  }

  /// Stores rows without a scale of V by TMA, through `staging`: this half of a key tile, [group][slice][8 rows][64], which the warpgroup
  /// has read. A TMA box is eight heads of one token. `staging` is free after tma_store_wait_read().
  __device__ void store_by_tma(const Sequence& sequence, std::uint32_t staging) const {
    const int lane = lane_index(), first = blockIdx.x * kQueryTile + first_row();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const PackedRow place(params, blockIdx.y, first + 8 * r);
      factor[r] = sum[r] == 0 ? 0 : __fdividef(1, sum_with_sink(params, place.head, sum[r], maximum[r] * scale_log2));
    }
    store_row_values(sequence, PackedRow(params, blockIdx.y, first + lane % 2 * 8));
    const int group = warp() * 2;
    const std::uint32_t to = staging + (group + lane % 16 / 8) * kKeyGroup + lane % 8 * 128;
    std::uint32_t pairs[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) pairs[i] = pack<Element>(out[2 * i] * factor[i % 2], out[2 * i + 1] * factor[i % 2]);
    store_swizzled_row<kValueDim / 2>(to, lane, kGroupBytes, lane, pairs);
    fence_shared_for_async();
    __syncwarp();
    if (lane >= 2) return;
    const PackedRow place(params, blockIdx.y, blockIdx.x * kQueryTile + (group + lane) * kBoxRows);
    const BoxStart at{.column = 0,
                      .row = static_cast<int>(place.head),
                      .slice = half * kHalfSlices,
                      .head = sequence.q_begin + place.token,
                      .block = sequence.batch};
    if (place.token < sequence.q_rows) tma_store(&params.results, at, staging + (group + lane) * kKeyGroup);
  }

  /// Stores a partial result in the order of the accumulator's registers, so that each store of a warp is contiguous. `await_right` returns
  /// once the right half of the accumulators is complete.
  template <class AwaitRight>
  __device__ void store_partial(const Sequence& sequence, int slot, AwaitRight&& await_right) const {
    const int own = math_warp();
    const bool wanted = uniform(has_rows(params, sequence, blockIdx.x, own));
    const float normalise[2] = {sum[0] == 0 ? 0.0f : Piece::kRounding / sum[0], sum[1] == 0 ? 0.0f : Piece::kRounding / sum[1]};
    const PartialPlace place(params, slot, blockIdx.y, blockIdx.x, own);
    uint2* to = place.sums() + lane_index();
    const auto store_half = [&](int right) {
      if (!wanted) return;
#pragma unroll
      for (int i = right * kPartialPieces / 2; i < (right + 1) * kPartialPieces / 2; ++i) {
        float x[kPieceFloats];
#pragma unroll
        for (int j = 0; j < kPieceFloats; ++j) x[j] = out[i * kPieceFloats + j] * normalise[j / 2 % 2];
        Piece(x).store(to + i * kPieceWords * 32);
      }
    };
    store_half(0);
    await_right();  // by every warp, with or without valid rows: MMAs are waited for at one place
    store_half(1);
    if (!wanted || lane_index() % 4 != 0) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float* stats = place.row_stats() + lane_index() / 4 + 8 * r;
      stats[RowStats::kLse] = lse_of(sum[r], maximum[r] * scale_log2);
      stats[RowStats::kMaximum] = maximum[r];
      stats[RowStats::kSum] = sum[r];
      if (has_largest && params.max_logits != nullptr) stats[RowStats::kLargest] = largest[r];
    }
  }

  /// Signals that this warp's rows of a partial result are stored. It waits for the stores, so it is called some time after them.
  __device__ void signal(const Sequence& sequence, int cta) const {
    const int own = math_warp();
    __syncwarp();
    flag_raise_if(lane_index() == 0 && has_rows(params, sequence, blockIdx.x, own), ready_flags(params, cta) + own);
  }

  /// Adds the partial results of the CTAs up to `end`, as the load warp copies them.
  template <class Storage>
  __device__ void reduce(Storage& storage, int end) const {
    for (int cta = own_cta(params) + 1; cta < end; ++cta) {
      const std::uint32_t uses = cta - own_cta(params) - 1;  // phases of the barriers before this one
      for (std::uint64_t& barrier : storage.partial_full) barrier_wait(shared_address(&barrier), uses & 1);
      add(storage.k[0], storage.k[1]);
      if (cta + 1 == end) break;
      fence_shared_for_async();  // orders these reads before the next copies
      barrier_arrive(shared_address(&storage.partial_empty));
    }
  }

 private:
  /// Adds a partial result in shared memory (StagedPartial).
  __device__ void add(const std::byte* even, const std::byte* odd) const {
    const int lane = lane_index(), own = math_warp();
    const float* rows = reinterpret_cast<const float*>(even + StagedPartial::kRowsAt + own * StagedPartial::kRowBytes) + lane / 4;
    float keep[2], weight[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* stats = rows + 8 * r;
      const float to = fmaxf(maximum[r], stats[RowStats::kMaximum]);
      keep[r] = rescale_factor<Warp>(maximum[r], to, scale_log2);
      weight[r] = stats[RowStats::kSum] * rescale_factor<Warp>(stats[RowStats::kMaximum], to, scale_log2);
      maximum[r] = to;
      sum[r] = fmaf(sum[r], keep[r], weight[r]);
      if (has_largest && params.max_logits != nullptr) largest[r] = fmaxf(largest[r], stats[RowStats::kLargest]);
    }
#pragma unroll
    for (int i = 0; i < kPartialPieces; ++i) {
      const std::byte* tile = i < StagedPartial::kPieces ? even : odd;
      const uint2* from =
          reinterpret_cast<const uint2*>(tile + own * StagedPartial::kBytes) + i % StagedPartial::kPieces * kPieceWords * 32 + lane;
      const Piece piece(from);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 x = piece.chunk(j);
        float* to = &out[i * kPieceFloats + 4 * j];
        to[0] = fmaf(to[0], keep[0], weight[0] * x.x);
        to[1] = fmaf(to[1], keep[0], weight[0] * x.y);
        to[2] = fmaf(to[2], keep[1], weight[1] * x.z);
        to[3] = fmaf(to[3], keep[1], weight[1] * x.w);
      }
    }
  }

  /// The warpgroup of the left columns stores the LSE, the other one the largest score. The first of four lanes stores the first row's, the
  /// second lane the second row's: `place` is that of the lane's row.
  __device__ void store_row_values(const Sequence& sequence, const PackedRow& place) const {
    const int r = lane_index() % 2;
    const float own_sum = r == 0 ? sum[0] : sum[1], base = (r == 0 ? maximum[0] : maximum[1]) * scale_log2;
    const float lse = own_sum == 0 ? -INFINITY : base + __log2f(own_sum), most = (r == 0 ? largest[0] : largest[1]) * scale_log2;
    float* to = half == 0 ? params.lse : params.max_logits;
    const detail::RowStrides strides = half == 0 ? params.lse_strides : params.max_logits_strides;
    if ((lane_index() % 4 >= 2) | (place.token >= sequence.q_rows) | (to == nullptr)) return;
    to[place.offset(sequence, strides)] = (half == 0 ? lse : most) * kLn2;
  }

  static __device__ int warp() { return thread_index() % 128 / 32; }
  __device__ int math_warp() const { return half * 4 + warp(); }
  static __device__ int first_row() { return warp() * 16 + lane_row(lane_index()); }
};

}  // namespace fovea::gpu::sm90::latent
