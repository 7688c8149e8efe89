// SPDX-License-Identifier: Apache-2.0
/// Eight lanes with AVX2, FMA and F16C, the base of both the AVX2 and the AVX-512 objects. Compiled into the namespace of each.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "cpu/isa/storage.hpp"

namespace fovea::cpu::FOVEA_ISA {

FOVEA_INLINE __m256 load8(F32, const void* p) { return _mm256_loadu_ps(static_cast<const float*>(p)); }

FOVEA_INLINE __m256 load8(F16, const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }

FOVEA_INLINE __m256 load8(BF16, const void* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}

/// An e4m3 code shifted into place is the f16 of value / 256, subnormals included. The same shift in f32 would make subnormal numbers of
/// the small codes, and multiplying those costs an Intel core a hundred cycles.
FOVEA_INLINE __m256 load8(E4M3, const void* p) {
  const __m128i code = _mm_unpacklo_epi8(_mm_setzero_si128(), _mm_loadl_epi64(static_cast<const __m128i*>(p)));
  const __m128i half = _mm_and_si128(_mm_srai_epi16(code, 1), _mm_set1_epi16(static_cast<short>(0xbf80)));
  const __m128i top = _mm_set1_epi16(0x3f80);  // of NaN, whose bits have no other meaning in f16
  const __m128i nan = _mm_srli_epi16(_mm_cmpeq_epi16(_mm_and_si128(half, top), top), 1);
  return _mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(half, nan)), _mm256_set1_ps(256.0f));
}

FOVEA_INLINE __m256 load8(I8, const void* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))));
}

/// Eight rows of eight 32-bit units; row i of the result holds unit i of every row.
FOVEA_INLINE void transpose8x8(__m256 (&r)[8]) {
  const __m256 a0 = _mm256_unpacklo_ps(r[0], r[1]), a1 = _mm256_unpackhi_ps(r[0], r[1]);
  const __m256 a2 = _mm256_unpacklo_ps(r[2], r[3]), a3 = _mm256_unpackhi_ps(r[2], r[3]);
  const __m256 a4 = _mm256_unpacklo_ps(r[4], r[5]), a5 = _mm256_unpackhi_ps(r[4], r[5]);
  const __m256 a6 = _mm256_unpacklo_ps(r[6], r[7]), a7 = _mm256_unpackhi_ps(r[6], r[7]);
  const __m256 b0 = _mm256_shuffle_ps(a0, a2, 0x44), b1 = _mm256_shuffle_ps(a0, a2, 0xee);
  const __m256 b2 = _mm256_shuffle_ps(a1, a3, 0x44), b3 = _mm256_shuffle_ps(a1, a3, 0xee);
  const __m256 b4 = _mm256_shuffle_ps(a4, a6, 0x44), b5 = _mm256_shuffle_ps(a4, a6, 0xee);
  const __m256 b6 = _mm256_shuffle_ps(a5, a7, 0x44), b7 = _mm256_shuffle_ps(a5, a7, 0xee);
  r[0] = _mm256_permute2f128_ps(b0, b4, 0x20);
  r[1] = _mm256_permute2f128_ps(b1, b5, 0x20);
  r[2] = _mm256_permute2f128_ps(b2, b6, 0x20);
  r[3] = _mm256_permute2f128_ps(b3, b7, 0x20);
  r[4] = _mm256_permute2f128_ps(b0, b4, 0x31);
  r[5] = _mm256_permute2f128_ps(b1, b5, 0x31);
  r[6] = _mm256_permute2f128_ps(b2, b6, 0x31);
  r[7] = _mm256_permute2f128_ps(b3, b7, 0x31);
}

/// Elements [d, d + 8) of eight rows as f32: to[element * stride + row].
template <class S>
FOVEA_INLINE void transpose_to(const void* const* rows, int d, float* to, int stride) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = load8(S{}, static_cast<const typename S::Code*>(rows[i]) + d);
  transpose8x8(r);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + i * stride, r[i]);
}

FOVEA_INLINE float sum_of_lanes(__m256 a) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1)), two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// Sixteen int8 values of eight rows, widened, as pairs: to[pair * stride + row].
FOVEA_INLINE void transpose_pairs(const void* const* rows, int d, std::int16_t* to, int stride) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    const auto* codes = static_cast<const std::int8_t*>(rows[i]) + d;
    r[i] = _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes))));
  }
  transpose8x8(r);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) _mm256_storeu_ps(reinterpret_cast<float*>(to) + i * stride, r[i]);
}

/// Prefetches into the second-level cache on processors that have such a hint. The first level is full of queries and accumulators, and has
/// few lines in flight at a time.
FOVEA_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace fovea::cpu::FOVEA_ISA
