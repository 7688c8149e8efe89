// SPDX-License-Identifier: Apache-2.0
/// Partial results: their format, where they lie, and how a load warp copies them into shared memory to be reduced.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

/// Statistics of the rows of a partial result: [kind][16 rows] of a math warp.
struct RowStats {
  static constexpr int kLse = 0, kMaximum = kMathWarpRows, kSum = 2 * kMathWarpRows, kLargest = 3 * kMathWarpRows;  // offset of each kind
  static constexpr int kFloats = kPartialRowStats * kMathWarpRows;
  /// Bytes to copy. The largest scores, which only the right half's warps have, are left out unless the call wants them.
  static __device__ int bytes(const Params& params) {
    return (params.max_logits != nullptr ? kFloats : kLargest) * static_cast<int>(sizeof(float));
  }
};

/// Where a math warp stores its rows of a partial result. `at` is small, because there are no more CTAs than multiprocessors.
struct PartialPlace {
  __device__ PartialPlace(const Params& params_, int slot, int kv_head, int query_tile, int warp)
      : params(params_), at(((slot * params.kv_heads + kv_head) * params.query_tiles + query_tile) * kMathWarps + warp) {}

  __device__ PartialPlace slots_on(int count) const {
    PartialPlace place = *this;
    place.at += count * params.kv_heads * params.query_tiles * kMathWarps;
    return place;
  }
  __device__ uint2* sums() const { return params.partial + at * kPartialPieces * kPieceWords * 32; }  // [piece][word][lane]
  /// RowStats of a row, counted from this warp's first row across the warps that follow.
  __device__ float* row_stats(int row = 0) const {
    return params.partial_rows + (at + row / kMathWarpRows) * RowStats::kFloats + row % kMathWarpRows;
  }

  const Params& params;
  int at;
};

/// Eight accumulators of 24 bits each: two columns of a row and of the row eight below, then the same eight columns to the right. The error
/// of a value is up to 2^-15.6, beside 2^-8 of bf16 or 2^-11 of f16. Infinities and NaN survive, because every value has been multiplied
/// before.
class Piece {
 public:
  /// Values are multiplied by this first, because truncation removes 2^-16.5 of a value on average.
  static constexpr float kRounding = 1 + 1.08e-5f;

  __device__ explicit Piece(const float (&x)[kPieceFloats]) {
#pragma unroll
    for (int i = 0; i < kPieceFloats; i += 4) {  // the fourth of four floats lies in the last bytes of the others
      const std::uint32_t fourth = __float_as_uint(x[i + 3]);
      word(i / 4 * 3) = __byte_perm(__float_as_uint(x[i]), fourth, 0x3215);
      word(i / 4 * 3 + 1) = __byte_perm(__float_as_uint(x[i + 1]), fourth, 0x3216);
      word(i / 4 * 3 + 2) = __byte_perm(__float_as_uint(x[i + 2]), fourth, 0x3217);
    }
  }
  /// `from`: [word][lane].
  __device__ explicit Piece(const uint2* from) {
#pragma unroll
    for (int i = 0; i < kPieceWords; ++i) words[i] = from[i * 32];
  }
  Piece() = default;

  __device__ void store(uint2* to) const {
#pragma unroll
    for (int i = 0; i < kPieceWords; ++i) to[i * 32] = words[i];
  }

  /// The first four floats, or the last four.
  __device__ float4 chunk(int i) const {
    const std::uint32_t own[3] = {word(3 * i), word(3 * i + 1), word(3 * i + 2)};
    const std::uint32_t fourth = (own[0] & 0xff) << 8 | (own[1] & 0xff) << 16 | own[2] << 24;
    return {first_bytes(own[0]), first_bytes(own[1]), first_bytes(own[2]), __uint_as_float(fourth)};
  }

 private:
  static __device__ float first_bytes(std::uint32_t word) { return __uint_as_float(word & ~0xffu); }

  __device__ std::uint32_t& word(int i) { return i % 2 == 0 ? words[i / 2].x : words[i / 2].y; }
  __device__ std::uint32_t word(int i) const { return i % 2 == 0 ? words[i / 2].x : words[i / 2].y; }

  uint2 words[kPieceWords];
};

/// Layout of a partial result that this CTA reduces, in the shared memory of its key tiles. Each tile has half of every math warp's pieces:
/// [math warp][piece][word][lane]. In the even tile, [math warp] RowStats follow.
struct StagedPartial {
  static constexpr int kPieces = kPartialPieces / 2, kBytes = kPieces * kPieceWords * 32 * sizeof(uint2);  // of a math warp
  static constexpr int kRowsAt = kMathWarps * kBytes;  // bytes from the even tile's begin to RowStats
  static constexpr int kRowBytes = kPartialRowStats * kMathWarpRows * sizeof(float);
};
static_assert(StagedPartial::kRowsAt + kMathWarps * StagedPartial::kRowBytes <= kGroups * kKeyGroup);

/// Copies the partial results of other CTAs for the last sequence of this one; by one warp, a lane for each math warp. A lane copies once
/// the other CTA has set its flag and `await_tile(i)` has returned, which means that consumers no longer read the i-th tile.
template <class Storage, class AwaitTile>
__device__ __forceinline__ void load_partials(const Params& params, Storage& storage, const WorkTile& work, AwaitTile&& await_tile) {
  if (!work.reduces) return;
  const int lane = lane_index();
  const bool wanted = lane < kMathWarps && has_rows(params, work.sequence, blockIdx.x, lane);
  const int first = own_cta(params) + 1;
#pragma unroll 1
  for (int cta = first; cta < work.ctas.end; ++cta) {
    if (wanted) {
      int* flag = ready_flags(params, cta) + lane;
      flag_wait(flag, 1);
      *flag = 0;
      fence_global_for_async();
    }
    __syncwarp();
    if (cta > first) barrier_wait(shared_address(&storage.partial_empty), (cta - first - 1) & 1);
    const PartialPlace place(params, detail::SplitSchedule::slot(cta, true), blockIdx.y, blockIdx.x, lane);
#pragma unroll 1
    for (int buffer = 0; buffer < 2; ++buffer) {
      const std::uint32_t arrived = shared_address(&storage.partial_full[buffer]), to = shared_address(storage.k[buffer]);
      if (cta == first) await_tile(buffer);
      const int row_bytes = buffer == 0 && wanted ? RowStats::bytes(params) : 0, bytes = wanted ? StagedPartial::kBytes : 0;
      if (wanted) bulk_load(to + lane * bytes, place.sums() + buffer * StagedPartial::kPieces * kPieceWords * 32, bytes, arrived);
      if (row_bytes > 0) bulk_load(to + StagedPartial::kRowsAt + lane * StagedPartial::kRowBytes, place.row_stats(), row_bytes, arrived);
      barrier_arrive_expect_tx(arrived, bytes + row_bytes);
    }
  }
  __syncwarp();
}

}  // namespace fovea::gpu::sm90::latent
