// SPDX-License-Identifier: Apache-2.0
/// Values as second operands, probabilities as first ones, and where the accumulators of their products are. e4m3 values are multiplied as
/// they are where warps do so in hardware; elsewhere they become halves, exactly.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/mma.cuh"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/common/target.cuh"

namespace fovea::gpu::portable::quantized_attention {

/// Two neighbouring columns of a row: indices of their accumulators, and the first column.
struct ColumnPair {
  int first, second, column;
};

/// Operands of f16 products, which add to the accumulators.
struct HalfProducts {
  using Operand = __half;
  using Range = FloatRange;
  static constexpr int kKeys = 16;           ///< of a product
  static constexpr bool kTileSums = false;   ///< whether sums of a key tile begin at zero, and join the accumulators in f32
  static constexpr int kLoadedColumns = 16;  ///< of shared memory, in units of two bytes, in what a load of matrices holds
  /// The lane's ldmatrix address.
  static __device__ MatrixPlace place(int lane) { return a_operand_place(lane); }
  /// Rounds the probabilities of kKeys keys to an A operand.
  static __device__ __forceinline__ void probabilities(const float* from, std::uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to[i] = pack<__half>(from[2 * i], from[2 * i + 1]);
  }
};

/// A lane has pairs of neighbouring columns, so the even columns of 16 make one tile of accumulators and the odd ones the next.
struct InterleavedColumns {
  static __device__ __forceinline__ ColumnPair columns(int lane, int pair, int r) {
    const int first = pair / 2 * 8 + 2 * r + pair % 2;
    return {first, first + 4, pair / 2 * 16 + lane % 4 * 4 + pair % 2 * 2};
  }
};

/// `kE4m3Products`: what e4m3 values are multiplied as.
template <class ValueElement, bool kE4m3Products = has_e4m3_mma(kTarget)>
struct Values;

template <bool kE4m3Products>
struct Values<__half, kE4m3Products> : HalfProducts {
  static constexpr int kTiles = 2;   ///< of 8 columns, in what a load holds
  static constexpr float kUnit = 1;  ///< of the operands
  static __device__ __forceinline__ void operands(const std::uint32_t (&loaded)[4], std::uint32_t (&to)[kTiles][2]) {
    to[0][0] = loaded[0];
    to[0][1] = loaded[1];
    to[1][0] = loaded[2];
    to[1][1] = loaded[3];
  }
  /// The pairs of the lane's r-th row are two in each 16 columns.
  static __device__ __forceinline__ ColumnPair columns(int lane, int pair, int r) {
    const int first = 4 * pair + 2 * r;
    return {first, first + 1, 8 * pair + lane % 4 * 2};
  }
};

/// e4m3 as halves: a lane has two tokens of two neighbouring columns.
template <>
struct Values<__nv_fp8_e4m3, false> : HalfProducts, InterleavedColumns {
  static constexpr int kTiles = 4;
  static constexpr bool kConverts = kTarget >= 89;  ///< by an instruction
  static constexpr float kUnit = kConverts ? 1 : 256;
  static __device__ __forceinline__ void operands(const std::uint32_t (&loaded)[4], std::uint32_t (&to)[kTiles][2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) halves(loaded[i], to[i / 2 * 2][i % 2], to[i / 2 * 2 + 1][i % 2]);
  }

 private:
  /// The bytes 0 and 2, and 1 and 3, as halves in units of kUnit.
  static __device__ __forceinline__ void halves(std::uint32_t codes, std::uint32_t& even, std::uint32_t& odd) {
    if constexpr (kConverts) {
      const std::uint32_t pairs = __byte_perm(codes, 0, 0x3120);
      even = halves_from_e4m3(pairs & 0xffff);
      odd = halves_from_e4m3(pairs >> 16);
    } else {
      even = halves_of(codes << 8);
      odd = halves_of(codes);
    }
  }
  /// Converts the high bytes of both 16 bits: exponent and mantissa are adjacent in both formats. NaN alone reaches bit 14.
  static __device__ __forceinline__ std::uint32_t halves_of(std::uint32_t codes) {
    const std::uint32_t magnitude = codes >> 1 & 0x3f803f80, nan = magnitude + 0x00800080 & 0x40004000;
    return magnitude | codes & 0x80008000 | nan;
  }
};

/// e4m3 as they are. Where an operand has keys 4t to 4t + 3 of lane t, keys 2t, 2t + 1, 2t + 8 and 2t + 9 are multiplied: these are the
/// columns of scores that the lane has, and the tokens of values. Tensor cores may sum in fewer bits than f32 has, so tiles have own sums.
template <>
struct Values<__nv_fp8_e4m3, true> : InterleavedColumns {
  using Operand = __nv_fp8_e4m3;
  using Range = E4m3SumRange;
  static constexpr int kKeys = 32, kLoadedColumns = 8, kTiles = 2;
  static constexpr bool kTileSums = true;
  static constexpr float kUnit = 1;
  /// Matrices of 8 tokens and 16 columns.
  static __device__ MatrixPlace place(int lane) { return {lane, 0}; }
  static __device__ __forceinline__ void probabilities(const float* from, std::uint32_t (&to)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* four = from + i / 2 * 8 + i % 2 * 2;
      to[i] = pack_e4m3(four[0], four[1], four[4], four[5]);
    }
  }
  static __device__ __forceinline__ void operands(const std::uint32_t (&loaded)[4], std::uint32_t (&to)[kTiles][2]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      to[0][i] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x6420);
      to[1][i] = __byte_perm(loaded[2 * i], loaded[2 * i + 1], 0x7531);
    }
  }
};

}  // namespace fovea::gpu::portable::quantized_attention
