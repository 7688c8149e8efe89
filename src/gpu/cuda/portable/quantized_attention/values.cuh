// SPDX-License-Identifier: Apache-2.0
/// Values as second operands of f16 products, and where the accumulators of these products are. e4m3 values become halves, exactly.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "gpu/common/codes.cuh"
#include "gpu/cuda/common/target.cuh"

namespace fovea::gpu::portable::quantized_attention {

/// Two neighbouring columns of a row: indices of their accumulators, and the first column.
struct ColumnPair {
  int first, second, column;
};

template <class ValueElement>
struct Values;

template <>
struct Values<__half> {
  static constexpr int kTiles = 2;   ///< of 8 columns, in what a load of matrices holds
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

/// A lane has two tokens of two neighbouring columns, so the even columns of 16 make one tile and the odd ones the next.
template <>
struct Values<__nv_fp8_e4m3> {
  static constexpr int kTiles = 4;
  static constexpr bool kConverts = kTarget >= 89;  ///< by an instruction
  static constexpr float kUnit = kConverts ? 1 : 256;
  static __device__ __forceinline__ void operands(const std::uint32_t (&loaded)[4], std::uint32_t (&to)[kTiles][2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) halves(loaded[i], to[i / 2 * 2][i % 2], to[i / 2 * 2 + 1][i % 2]);
  }
  static __device__ __forceinline__ ColumnPair columns(int lane, int pair, int r) {
    const int first = pair / 2 * 8 + 2 * r + pair % 2;
    return {first, first + 4, pair / 2 * 16 + lane % 4 * 4 + pair % 2 * 2};
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
  /// Of the high bytes of both 16 bits: exponent and mantissa lie side by side in both formats. Only the code of NaN reaches bit 14.
  static __device__ __forceinline__ std::uint32_t halves_of(std::uint32_t codes) {
    const std::uint32_t magnitude = codes >> 1 & 0x3f803f80, nan = magnitude + 0x00800080 & 0x40004000;
    return magnitude | codes & 0x80008000 | nan;
  }
};

}  // namespace fovea::gpu::portable::quantized_attention
