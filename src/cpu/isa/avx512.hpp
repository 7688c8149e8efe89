// SPDX-License-Identifier: Apache-2.0
/// AVX-512 F, BW, VL, DQ: sixteen f32 lanes, thirty-two registers.
#pragma once

#include "cpu/isa/x86_256.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kLanes = 16;
inline constexpr int kBlockRows = 12;  // 12 x 32: twenty-four accumulators, two keys; queries broadcast from memory
inline constexpr int kPanelVectors = 2;
inline constexpr int kStreamSums = 16;  // accumulators of the streamed products

inline constexpr int kRowBytes = 1024 << 10;  // rows of q and out that share a packing
inline constexpr int kTileBytes = 512 << 10;  // packed K and V: what a second-level cache holds

struct Vec {
  __m512 v;
};

struct Two {
  Vec first, second;
};

FOVEA_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
FOVEA_INLINE Vec splat(float x) { return {_mm512_set1_ps(x)}; }
FOVEA_INLINE Vec keep(Vec a) { return a; }
FOVEA_INLINE Vec broadcast(const float* p) { return {_mm512_set1_ps(*p)}; }

FOVEA_INLINE Vec load(F32, const void* p) { return {_mm512_loadu_ps(p)}; }
FOVEA_INLINE Vec load(F16, const void* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
FOVEA_INLINE Vec load(BF16, const void* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16))};
}
FOVEA_INLINE Vec load(I8, const void* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))))};
}
/// As load8(E4M3).
FOVEA_INLINE Vec load(E4M3, const void* p) {
  const __m256i code = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(code, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i top = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_srli_epi16(_mm256_cmpeq_epi16(_mm256_and_si256(half, top), top), 1);
  return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(half, nan)), _mm512_set1_ps(256.0f))};
}

/// Sixteen numbers, and those of them that kLanes codes of four bits name. The low bits of a byte hold the first of its two codes.
struct Sixteen {
  __m512 v;
};
FOVEA_INLINE Sixteen load_sixteen(const float* p) { return {_mm512_loadu_ps(p)}; }
/// A byte b becomes the dwords b + (b << 28) and b >> 4. The permutation reads their four lowest bits alone.
FOVEA_INLINE Vec look_up(Sixteen numbers, const void* p) {
  const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  return {_mm512_permutexvar_ps(_mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28)), numbers.v)};
}

/// A shift and a mask widen a whole register, half of what load() takes: the first vector holds the even elements, the second the odd.
FOVEA_INLINE Two load_two(BF16, const void* p) {
  const __m512i codes = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(codes, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(codes, _mm512_set1_epi32(static_cast<int>(0xffff0000))))}};
}
/// As load8(E4M3): thirty-two quantised values, up to the point where they are numbers of sixteen bits.
FOVEA_INLINE Two load_two(E4M3, const void* p) {
  const __m512i code = _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 8);
  const __m512i half = _mm512_and_si512(_mm512_srai_epi16(code, 1), _mm512_set1_epi16(static_cast<short>(0xbf80)));
  const __m512i top = _mm512_set1_epi16(0x3f80);
  const __mmask32 nan = _mm512_cmpeq_epi16_mask(_mm512_and_si512(half, top), top);
  const __m512i all = _mm512_mask_mov_epi16(half, nan, _mm512_set1_epi16(0x7fff));
  const __m512 scale = _mm512_set1_ps(256.0f);
  return {{_mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(all)), scale)},
          {_mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(all, 1)), scale)}};
}
FOVEA_INLINE __m512i every_second(int from) {
  return _mm512_add_epi32(_mm512_set1_epi32(from), _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
}
FOVEA_INLINE Two load_two_as(BF16, const float* p) {
  const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + kLanes);
  return {{_mm512_permutex2var_ps(low, every_second(0), high)}, {_mm512_permutex2var_ps(low, every_second(1), high)}};
}
FOVEA_INLINE void store_two_as(BF16, float* p, Two a) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  _mm512_storeu_ps(p, _mm512_permutex2var_ps(a.first.v, low, a.second.v));
  _mm512_storeu_ps(p + kLanes, _mm512_permutex2var_ps(a.first.v, _mm512_add_epi32(low, _mm512_set1_epi32(8)), a.second.v));
}

FOVEA_INLINE Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
FOVEA_INLINE Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
FOVEA_INLINE Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
FOVEA_INLINE Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
/// b where either is NaN.
FOVEA_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
FOVEA_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.v, b.v)}; }
FOVEA_INLINE Vec abs(Vec a) { return {_mm512_abs_ps(a.v)}; }
FOVEA_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  const __m512i bit = _mm512_set1_epi32(INT32_MIN);  // bits of -0.0f: magnitude where clear, sign where set
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(bit, _mm512_castps_si512(sign.v), _mm512_castps_si512(magnitude.v), 0xca))};
}
/// x < limit ? a : b; b where x is NaN.
FOVEA_INLINE Vec select_less(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_LT_OQ), b.v, a.v)};
}
/// An integer and the remainder, in [-0.5, 0.5]. An infinity is its own integer and leaves 0. NaN stays NaN.
struct Split {
  Vec whole, fraction;
};
FOVEA_INLINE Split split_exponent(Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {{_mm512_roundscale_ps(a.v, kNearest)}, {_mm512_reduce_ps(a.v, kNearest)}};
}
/// p * 2^n for integral n. A NaN in either stays one.
FOVEA_INLINE Vec scale_by_power(Vec p, Vec n) { return {_mm512_scalef_ps(p.v, n.v)}; }

FOVEA_INLINE float reduce_add(Vec a) { return sum_of_lanes(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1))); }
FOVEA_INLINE float reduce_max(Vec a) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
/// Adds neighbours, those of a before those of b: pairs of lanes, and pairs of quarters.
FOVEA_INLINE __m512 pairs_added(__m512 a, __m512 b) { return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd)); }
FOVEA_INLINE __m512 quarters_added(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

/// Sums of lanes, of four rows at a time: to[r * stride + i] is the sum of a[r][i].
template <int kRows>
FOVEA_INLINE void store_sums(float* to, std::int64_t stride, const Vec (&a)[kRows][4]) {
#pragma GCC unroll 2
  for (int first = 0; first < kRows; first += 4, to += 4 * stride) {
    __m512 row[4];  // in each quarter, parts of the row's four sums
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      const Vec(&v)[4] = a[first + r < kRows ? first + r : first];
      row[r] = pairs_added(pairs_added(v[0].v, v[1].v), pairs_added(v[2].v, v[3].v));
    }
    const __m512 sums = quarters_added(quarters_added(row[0], row[1]), quarters_added(row[2], row[3]));
    _mm_storeu_ps(to, _mm512_castps512_ps128(sums));
    if (first + 1 < kRows) _mm_storeu_ps(to + stride, _mm512_extractf32x4_ps(sums, 1));
    if (first + 2 < kRows) _mm_storeu_ps(to + 2 * stride, _mm512_extractf32x4_ps(sums, 2));
    if (first + 3 < kRows) _mm_storeu_ps(to + 3 * stride, _mm512_extractf32x4_ps(sums, 3));
  }
}

FOVEA_INLINE void store(F32, void* p, Vec a) { _mm512_storeu_ps(p, a.v); }
FOVEA_INLINE void store(F16, void* p, Vec a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FOVEA_INLINE void store(BF16, void* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)));
}
/// Rounds to nearest even, saturates at 448, keeps NaN.
FOVEA_INLINE void store(E4M3, void* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  const __m512i rebased = _mm512_sub_epi32(magnitude, _mm512_set1_epi32(120 << 23));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(rebased, 20), _mm512_set1_epi32(1));
  __m512i code = _mm512_srli_epi32(_mm512_add_epi32(rebased, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff))), 20);
  const __mmask16 small = _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(0x3c800000), magnitude);
  code = _mm512_mask_cvtps_epi32(code, small, _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(512.0f)));
  code = _mm512_mask_mov_epi32(code, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x43dfffff)), _mm512_set1_epi32(0x7e));
  code = _mm512_mask_mov_epi32(code, _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000)), _mm512_set1_epi32(0x7f));
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_or_si512(code, sign)));
}

/// Rounds to nearest even and saturates.
FOVEA_INLINE void store(I8, void* p, Vec a) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v))); }

/// int8 products with int32 sums. Quantised values are widened when they are packed.
struct Int8Math {
  using Operand = std::int16_t;
  struct Reg {
    __m512i v;
  };
  static constexpr int kPair = 2;
  static constexpr int kRegWidth = 2 * kLanes;

  static constexpr const char* kArithmetic = "int8 scores, f32 values,";

  FOVEA_INLINE void prepare(const Operand*, int, std::int32_t*) {}
  FOVEA_INLINE Reg begin(const std::int32_t*) { return {_mm512_setzero_si512()}; }
  FOVEA_INLINE Reg repeat(const Operand* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
  }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return {_mm512_loadu_si512(p)}; }
  FOVEA_INLINE void store_operands(Operand* p, Reg a) { _mm512_storeu_si512(p, a.v); }
  FOVEA_INLINE Reg negated(Reg a) { return {_mm512_sub_epi16(_mm512_setzero_si512(), a.v)}; }
  /// One statement, as in avx2.hpp.
  FOVEA_INLINE Reg multiply_add(Reg a, Reg b, Reg c) {
    __m512i product;
    asm("vpmaddwd %[b], %[a], %[product]\n\tvpaddd %[product], %[c], %[c]"
        : [c] "+v"(c.v), [product] "=&v"(product)
        : [a] "v"(a.v), [b] "v"(b.v));
    return c;
  }
  FOVEA_INLINE Vec total(Reg sum) { return {_mm512_cvtepi32_ps(sum.v)}; }
  FOVEA_INLINE Reg load_row(I8, const void* p) { return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(static_cast<const __m256i*>(p)))}; }
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    transpose_pairs(rows, d, to, kPanelVectors * kLanes);
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
