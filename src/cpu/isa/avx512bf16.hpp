// SPDX-License-Identifier: Apache-2.0
/// AVX-512 with vdpbf16ps: pairs of bf16 products summed in f32.
#pragma once

#include "cpu/isa/avx512.hpp"

namespace fovea::cpu::FOVEA_ISA {

FOVEA_INLINE void store_two(BF16, void* p, Two a) { _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(a.second.v, a.first.v)); }

/// Sixteen pairs of bf16, or thirty-two elements of a row.
struct Pairs {
  __m512i v;
};

struct BF16Math {
  using Operand = std::uint16_t;
  using Reg = Pairs;
  static constexpr int kPair = 2;
  static constexpr int kRegWidth = 2 * kLanes;
  using StreamReg = Pairs;
  static constexpr int kStreamWidth = kRegWidth;

  FOVEA_INLINE Reg repeat(const Operand* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
  }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return {_mm512_loadu_si512(p)}; }
  FOVEA_INLINE void store_operands(Operand* p, Reg a) { _mm512_storeu_si512(p, a.v); }
  FOVEA_INLINE Reg negated(Reg a) { return {_mm512_xor_si512(a.v, _mm512_set1_epi16(INT16_MIN))}; }
  FOVEA_INLINE Vec multiply_add(Reg a, Reg b, Vec c) { return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)}; }

  FOVEA_INLINE Reg load_row(BF16, const void* p) { return {_mm512_loadu_si512(p)}; }
  /// Every e4m3 value is a bf16 value.
  FOVEA_INLINE Reg load_row(E4M3, const void* p) {
    const Two values = load_two(E4M3{}, p);
    return {(__m512i)_mm512_cvtne2ps_pbh(values.second.v, values.first.v)};
  }
  template <class S>
  FOVEA_INLINE StreamReg load_stream(S storage, const void* p) {
    return load_row(storage, p);
  }
  FOVEA_INLINE StreamReg load_stream_q(const Operand* p) { return load_operands(p); }
  FOVEA_INLINE Vec stream_multiply_add(StreamReg a, StreamReg b, Vec c) { return multiply_add(a, b, c); }
  FOVEA_INLINE void store_weights(Operand* p, const Vec (&weight)[kPair]) {
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(weight[1].v, weight[0].v));
  }

  struct Finite {
    __mmask32 special = 0;
    /// An exponent of all ones: infinity or NaN.
    FOVEA_INLINE void look(Finite& finite, Reg a) {
      const __m512i exponent = _mm512_set1_epi16(0x7f80);
      finite.special |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(a.v, exponent), exponent);
    }
    bool all() const { return special == 0; }
  };

  FOVEA_INLINE __m256i load16(BF16, const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  FOVEA_INLINE __m256i load16(F16, const void* p) { return (__m256i)_mm512_cvtneps_pbh(load(F16{}, p).v); }
  FOVEA_INLINE __m256i load16(E4M3, const void* p) { return (__m256i)_mm512_cvtneps_pbh(load(E4M3{}, p).v); }

  /// kLanes columns of two rows, (column, row).
  template <class S>
  FOVEA_INLINE void interleave(const void* const* rows, int column, Operand* to, Finite& finite) {
    const __m512i even = _mm512_cvtepu16_epi32(load16(S{}, static_cast<const typename S::Code*>(rows[0]) + column));
    const __m512i odd = _mm512_cvtepu16_epi32(load16(S{}, static_cast<const typename S::Code*>(rows[1]) + column));
    const Reg pairs{_mm512_or_si512(even, _mm512_slli_epi32(odd, 16))};
    Finite::look(finite, pairs);
    store_operands(to, pairs);
  }

  /// Elements [d, d + 16) of eight rows as pairs, to[pair][panel][row][2].
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    __m256 r[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) r[i] = _mm256_castsi256_ps(load16(S{}, static_cast<const typename S::Code*>(rows[i]) + d));
    transpose8x8(r);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) _mm256_storeu_ps(reinterpret_cast<float*>(to) + i * kPanelVectors * kLanes, r[i]);
  }

  /// Elements [d, d + 16) of rows `first` and `first + 1`, side by side.
  FOVEA_INLINE __m512i side_by_side(const void* const* rows, int first, int d) {
    const __m512i even = _mm512_cvtepu16_epi32(load16(BF16{}, static_cast<const Operand*>(rows[first]) + d));
    const __m512i odd = _mm512_cvtepu16_epi32(load16(BF16{}, static_cast<const Operand*>(rows[first + 1]) + d));
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
  }
  /// As F32Math's. A quarter of a register is four elements of two rows.
  static constexpr int kTransposed = kLanes;
  FOVEA_INLINE void transpose_operands(const void* const* rows, int d, Operand* to, std::int64_t stride) {
    const __m512i a = side_by_side(rows, 0, d), b = side_by_side(rows, 2, d), c = side_by_side(rows, 4, d), e = side_by_side(rows, 6, d);
    const __m512i ab = _mm512_unpacklo_epi32(a, b), ce = _mm512_unpacklo_epi32(c, e);
    const __m512i high_ab = _mm512_unpackhi_epi32(a, b), high_ce = _mm512_unpackhi_epi32(c, e);
    const __m512i all[4] = {_mm512_unpacklo_epi64(ab, ce), _mm512_unpackhi_epi64(ab, ce), _mm512_unpacklo_epi64(high_ab, high_ce),
                            _mm512_unpackhi_epi64(high_ab, high_ce)};  // quarter j of i: eight rows of element 4 j + i
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const auto row = [&](int quarter) { return reinterpret_cast<__m128i*>(to + (4 * quarter + i) * stride); };
      _mm_storeu_si128(row(0), _mm512_castsi512_si128(all[i]));
      _mm_storeu_si128(row(1), _mm512_extracti32x4_epi32(all[i], 1));
      _mm_storeu_si128(row(2), _mm512_extracti32x4_epi32(all[i], 2));
      _mm_storeu_si128(row(3), _mm512_extracti32x4_epi32(all[i], 3));
    }
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
