// SPDX-License-Identifier: Apache-2.0
/// AVX2 + FMA + F16C: eight f32 lanes, sixteen registers.
#pragma once

#include "cpu/isa/x86_256.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kLanes = 8;
inline constexpr int kBlockRows = 6;  // 6 x 16: twelve accumulators, two keys, two queries
inline constexpr int kPanelVectors = 2;
inline constexpr int kStreamSums = 8;  // accumulators of the streamed products

inline constexpr int kRowBytes = 512 << 10;   // rows of q and out that share a packing
inline constexpr int kTileBytes = 512 << 10;  // packed K and V: what a second-level cache holds

struct Vec {
  __m256 v;
};

struct Two {
  Vec first, second;
};

FOVEA_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
FOVEA_INLINE Vec splat(float x) { return {_mm256_set1_ps(x)}; }
FOVEA_INLINE Vec broadcast(const float* p) { return {_mm256_broadcast_ss(p)}; }
template <class S>
FOVEA_INLINE Vec load(S storage, const void* p) {
  return {load8(storage, p)};
}

/// Keeps the value in a register. The compiler would rather load it again for each product, and there are only two loads a cycle.
FOVEA_INLINE Vec keep(Vec a) {
  asm("" : "+x"(a.v));
  return a;
}

/// Sixteen numbers, and those of them that kLanes codes of four bits name. The low bits of a byte hold the first of its two codes.
struct Sixteen {
  __m256 low, high;
};
FOVEA_INLINE Sixteen load_sixteen(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + kLanes)}; }
/// A permutation reads the three lowest bits of a code, and the fourth chooses one of two.
FOVEA_INLINE Vec look_up(Sixteen numbers, const void* p) {
  std::int32_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const __m256i code = _mm256_srlv_epi32(_mm256_set1_epi32(bytes), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
  return {_mm256_blendv_ps(_mm256_permutevar8x32_ps(numbers.low, code), _mm256_permutevar8x32_ps(numbers.high, code),
                           _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)))};
}

/// Interleaving with zeros widens bf16 in one instruction a vector, half of what load() takes, but works within 128-bit lanes. The first
/// vector holds elements 0-3 and 8-11, the second 4-7 and 12-15.
FOVEA_INLINE Two load_two(BF16, const void* p) {
  const __m256i codes = _mm256_loadu_si256(static_cast<const __m256i*>(p)), none = _mm256_setzero_si256();
  return {{_mm256_castsi256_ps(_mm256_unpacklo_epi16(none, codes))}, {_mm256_castsi256_ps(_mm256_unpackhi_epi16(none, codes))}};
}
/// As load8(E4M3): sixteen quantised values, up to the point where they are numbers of sixteen bits.
FOVEA_INLINE Two load_two(E4M3, const void* p) {
  const __m256i code = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p))), 8);
  const __m256i half = _mm256_and_si256(_mm256_srai_epi16(code, 1), _mm256_set1_epi16(static_cast<short>(0xbf80)));
  const __m256i top = _mm256_set1_epi16(0x3f80);
  const __m256i nan = _mm256_srli_epi16(_mm256_cmpeq_epi16(_mm256_and_si256(half, top), top), 1);
  const __m256i all = _mm256_or_si256(half, nan);
  const __m256 scale = _mm256_set1_ps(256.0f);
  return {{_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(all)), scale)},
          {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(all, 1)), scale)}};
}
FOVEA_INLINE Two load_two_as(BF16, const float* p) { return {{_mm256_loadu2_m128(p + 8, p)}, {_mm256_loadu2_m128(p + 12, p + 4)}}; }
FOVEA_INLINE void store_two_as(BF16, float* p, Two a) {
  _mm256_storeu2_m128(p + 8, p, a.first.v);
  _mm256_storeu2_m128(p + 12, p + 4, a.second.v);
}

FOVEA_INLINE Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
FOVEA_INLINE Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
FOVEA_INLINE Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
FOVEA_INLINE Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
/// b where either is NaN.
FOVEA_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
FOVEA_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.v, b.v)}; }
FOVEA_INLINE Vec round(Vec a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
FOVEA_INLINE Vec abs(Vec a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
FOVEA_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  const __m256 bit = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(bit, magnitude.v), _mm256_and_ps(bit, sign.v))};
}
/// x < limit ? a : b; b where x is NaN.
FOVEA_INLINE Vec select_less(Vec x, Vec limit, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.v, a.v, _mm256_cmp_ps(x.v, limit.v, _CMP_LT_OQ))};
}
/// An integer, at least -127, and the remainder, in [-0.5, 0.5] above it. NaN stays NaN.
struct Split {
  Vec whole, fraction;
};
FOVEA_INLINE Split split_exponent(Vec a) {
  const Vec clamped = max(splat(-127.0f), a);  // this order passes NaN on; 1 * 2^-127 has the bits of zero in scale_by_power
  const Vec whole = round(clamped);
  return {whole, sub(clamped, whole)};
}
/// p * 2^n for integral n >= -126 and p in [0.5, 2), and zero for p = 1, n = -127. A NaN in either stays one.
FOVEA_INLINE Vec scale_by_power(Vec p, Vec n) {
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v), _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23)))};
}

FOVEA_INLINE float reduce_add(Vec a) { return sum_of_lanes(a.v); }
FOVEA_INLINE float reduce_max(Vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
/// Sums of the lanes of eight vectors, in order. Takes seven shuffles; horizontal additions would take sixteen.
FOVEA_INLINE __m256 sums_of_eight(const __m256 (&a)[8]) {
  __m256 pair[4], four[2];  // lanes of two vectors each, then of four
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256 x = a[i / 2 * 4 + i % 2], y = a[i / 2 * 4 + i % 2 + 2];
    pair[i] = _mm256_add_ps(_mm256_blend_ps(x, y, 0xcc), _mm256_shuffle_ps(x, y, 0x4e));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m256 x = pair[2 * i], y = pair[2 * i + 1], crossed = _mm256_blend_ps(y, x, 0xaa);
    four[i] = _mm256_add_ps(_mm256_blend_ps(x, y, 0xaa), _mm256_shuffle_ps(crossed, crossed, 0xb1));
  }
  return _mm256_add_ps(_mm256_blend_ps(four[0], four[1], 0xf0), _mm256_permute2f128_ps(four[0], four[1], 0x21));
}

/// Sums of lanes, of eight vectors at a time: to[r * stride + i] is the sum of a[r][i].
template <int kRows, int kKeys>
FOVEA_INLINE void store_sums(float* to, std::int64_t stride, const Vec (&a)[kRows][kKeys]) {
  constexpr int kCount = kRows * kKeys;
  for (int first = 0; first < kCount; first += 8) {
    __m256 some[8];
    float sums[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const int at = first + i < kCount ? first + i : first;
      some[i] = a[at / kKeys][at % kKeys].v;
    }
    _mm256_storeu_ps(sums, sums_of_eight(some));
    for (int i = 0; i < 8 && first + i < kCount; i += kKeys)
      __builtin_memcpy(to + (first + i) / kKeys * stride, sums + i, kKeys * sizeof(float));
  }
}

FOVEA_INLINE void store(F32, void* p, Vec a) { _mm256_storeu_ps(static_cast<float*>(p), a.v); }
FOVEA_INLINE void store(F16, void* p, Vec a) {
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
FOVEA_INLINE void store(BF16, void* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i wide = _mm256_blendv_epi8(rounded, quiet, nan);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(wide, wide), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
/// Rounds to nearest even, saturates at 448, keeps NaN.
FOVEA_INLINE void store(E4M3, void* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i rebased = _mm256_sub_epi32(magnitude, _mm256_set1_epi32(120 << 23));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(rebased, 20), _mm256_set1_epi32(1));
  const __m256i normal = _mm256_srli_epi32(_mm256_add_epi32(rebased, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff))), 20);
  const __m256i small = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(512.0f)));
  __m256i code = _mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(0x3c800000), magnitude));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7e), _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x43dfffff)));
  code = _mm256_blendv_epi8(code, _mm256_set1_epi32(0x7f), _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000)));
  code = _mm256_or_si256(code, sign);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(code, code), 0x08);
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_castsi256_si128(words)));
}

/// Rounds to nearest even and saturates.
FOVEA_INLINE void store(I8, void* p, Vec a) {
  const __m256i wide = _mm256_cvtps_epi32(a.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(static_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}

/// int8 products with int32 sums. Quantised values are widened once, when they are packed. vpmaddwd then does as many products a cycle as
/// vpmaddubsw would with its sign fixed and its 16-bit sums widened.
struct Int8Math {
  using Operand = std::int16_t;
  struct Reg {
    __m256i v;
  };
  static constexpr int kPair = 2;
  static constexpr int kRegWidth = 2 * kLanes;

  static constexpr const char* kArithmetic = "int8 scores, f32 values,";

  FOVEA_INLINE void prepare(const Operand*, int, std::int32_t*) {}
  FOVEA_INLINE Reg begin(const std::int32_t*) { return {_mm256_setzero_si256()}; }
  FOVEA_INLINE Reg repeat(const Operand* p) {
    std::int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm256_set1_epi32(pair)};
  }
  FOVEA_INLINE Reg load_operands(const Operand* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
  FOVEA_INLINE void store_operands(Operand* p, Reg a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v); }
  FOVEA_INLINE Reg negated(Reg a) { return {_mm256_sub_epi16(_mm256_setzero_si256(), a.v)}; }
  /// One statement, so that a product lives no longer than this. Otherwise the compiler keeps several products and spills the sums.
  FOVEA_INLINE Reg multiply_add(Reg a, Reg b, Reg c) {
    __m256i product;
    asm("vpmaddwd %[b], %[a], %[product]\n\tvpaddd %[product], %[c], %[c]"
        : [c] "+x"(c.v), [product] "=&x"(product)
        : [a] "x"(a.v), [b] "x"(b.v));
    return c;
  }
  FOVEA_INLINE Vec total(Reg sum) { return {_mm256_cvtepi32_ps(sum.v)}; }
  FOVEA_INLINE Reg load_row(I8, const void* p) { return {_mm256_cvtepi8_epi16(_mm_loadu_si128(static_cast<const __m128i*>(p)))}; }
  template <class S>
  FOVEA_INLINE void transpose(const void* const* rows, int d, Operand* to) {
    transpose_pairs(rows, d, to, kPanelVectors * kLanes);
  }
};

}  // namespace fovea::cpu::FOVEA_ISA
