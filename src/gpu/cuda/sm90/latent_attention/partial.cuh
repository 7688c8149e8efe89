// SPDX-License-Identifier: Apache-2.0
/// Partial results: where they lie, and in what form.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// Numbers of each row of a partial result: [kind][16 rows] of a math warp.
struct RowStats {
  static constexpr int kLse = 0, kMaximum = kMathWarpRows, kSum = 2 * kMathWarpRows,
                       kLargest = 3 * kMathWarpRows;  // where each kind begins
  static constexpr int kFloats = kPartialRowStats * kMathWarpRows;
  /// Bytes to copy: without the largest scores, which only the right half's warps have, unless the call wants them.
  static __device__ int bytes(const Params& params) {
    return (params.max_logits != nullptr ? kFloats : kLargest) * static_cast<int>(sizeof(float));
  }
};

/// Where a math warp stores its rows of a partial result. Its number is small, because there are no more parts than multiprocessors.
struct PartialPlace {
  __device__ PartialPlace(const Params& params_, int slot, int kv_head, int row_tile, int warp)
      : params(params_), at(((slot * params.kv_heads + kv_head) * params.row_tiles + row_tile) * kMathWarps + warp) {}

  __device__ PartialPlace slots_on(int count) const {
    PartialPlace place = *this;
    place.at += count * params.kv_heads * params.row_tiles * kMathWarps;
    return place;
  }
  __device__ uint2* sums() const { return params.partial + at * kPartialPieces * kPieceWords * 32; }  // [piece][word][lane]
  /// Stats of row `row`, counted from this warp's first row over the warps that follow.
  __device__ float* row_stats(int row = 0) const {
    return params.partial_rows + (at + row / kMathWarpRows) * RowStats::kFloats + row % kMathWarpRows;
  }

  const Params& params;
  int at;
};

/// Eight floats without their last bytes, in the order of the accumulator's registers: two columns of a row, two of the row eight further
/// on, and the same eight columns on. The error of a value is up to 2^-15.6, next to 2^-8 or 2^-11 of bf16 or f16. Infinities and NaN stay
/// so, because every value has been multiplied before.
class Piece {
 public:
  /// Truncation removes 2^-16.5 of a value on average. Values are multiplied by this first.
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

}  // namespace fovea::gpu::sm90::latent
