// SPDX-License-Identifier: Apache-2.0
/// AVX-512 with vpdpbusd: four products of an unsigned and a signed byte summed in an integer.
#pragma once

#include "cpu/isa/avx512.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// Queries are held as q + 128, which is unsigned. The sums therefore begin with -128 times the sum of the key.
struct Int8DotMath {
  using Operand = std::uint8_t;
  struct Reg {
    __m512i v;
  };
  static constexpr int kPair = 4;
  static constexpr const char* kArithmetic = "int8 dot products, f32 values,";

  /// A half register, so that rows of 96 elements are whole ones.
  static constexpr int kRegWidth = 32;
  struct Half {
    __m256i v;
  };

  FOVEA_INLINE Reg begin(const std::int32_t* start) { return {_mm512_loadu_si512(start)}; }
  FOVEA_INLINE Reg repeat(const Operand* p) {
    std::int32_t four;
    __builtin_memcpy(&four, p, sizeof four);
    return {_mm512_set1_epi32(four)};
  }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return {_mm512_loadu_si512(p)}; }
  /// Inline assembly: with the intrinsic, g++ 12 copies the sum and then spills the copies.
  FOVEA_INLINE Reg multiply_add(Reg a, Reg b, Reg c) {
    asm("vpdpbusd %[b], %[a], %[c]" : [c] "+v"(c.v) : [a] "v"(a.v), [b] "v"(b.v));
    return c;
  }
  FOVEA_INLINE Vec total(Reg sum) { return {_mm512_cvtepi32_ps(sum.v)}; }

  /// `keys`: a panel, [head_dim / kPair][kPanel][kPair].
  FOVEA_INLINE void prepare(const Operand* keys, int head_dim, std::int32_t* start) {
    constexpr int kWidth = kPanelVectors * kLanes;
    const Reg offset{_mm512_set1_epi8(-128)};  // 128, unsigned
    for (int j = 0; j < kWidth; j += kLanes) {
      Reg sum{_mm512_setzero_si512()};
      for (int k = 0; k < head_dim; k += kPair) sum = multiply_add(offset, load_operands(keys + k * kWidth + j * kPair), sum);
      _mm512_storeu_si512(start + j, _mm512_sub_epi32(_mm512_setzero_si512(), sum.v));
    }
  }

  FOVEA_INLINE __m256i flipped(__m256i a) { return _mm256_xor_si256(a, _mm256_set1_epi8(-128)); }
  FOVEA_INLINE Half load_row(I8, const void* p) { return {flipped(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
  FOVEA_INLINE void store_operands(Operand* p, Half a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
  /// 128 - q. Quantised values are -127 .. 127.
  FOVEA_INLINE Half negated(Half a) { return {_mm256_sub_epi8(_mm256_setzero_si256(), a.v)}; }

  /// Elements [d, d + 32) of eight rows in fours, to[four][panel][row][4].
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const void* row = static_cast<const typename S::Code*>(rows[i]) + d;
      r[i] = _mm256_castsi256_ps(_mm256_loadu_si256(static_cast<const __m256i*>(row)));
    }
    transpose8x8(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(reinterpret_cast<float*>(to) + i * kPanelVectors * kLanes, r[i]);
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
