// SPDX-License-Identifier: Apache-2.0
/// Every 64-bit Arm processor has four f32 lanes, 32 registers, fused multiply-add and conversions of f16.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/isa/storage.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kLanes = 4;
inline constexpr int kBlockRows = 6;  // 6 x 16: 24 accumulators, four keys, one query
inline constexpr int kPanelVectors = 4;
inline constexpr int kStreamSums = 8;  // accumulators of the streamed products

inline constexpr int kRowBytes = 512 << 10;   // rows of q and out that share a packing
inline constexpr int kTileBytes = 512 << 10;  // packed K and V: what a second-level cache holds

struct Vec {
  float32x4_t v;
};

struct Two {
  Vec first, second;
};

FOVEA_INLINE Vec zero() { return {vdupq_n_f32(0.0f)}; }
FOVEA_INLINE Vec splat(float x) { return {vdupq_n_f32(x)}; }
FOVEA_INLINE Vec broadcast(const float* p) { return {vld1q_dup_f32(p)}; }
FOVEA_INLINE Vec keep(Vec a) { return a; }

/// Four codes of one byte in the low half; the others are zero. Nothing is aligned.
FOVEA_INLINE uint8x8_t load_bytes(const void* p) {
  std::uint32_t codes;
  __builtin_memcpy(&codes, p, sizeof codes);
  return vcreate_u8(codes);
}
FOVEA_INLINE void store_bytes(void* p, uint8x8_t codes) {
  const std::uint32_t four = vget_lane_u32(vreinterpret_u32_u8(codes), 0);
  __builtin_memcpy(p, &four, sizeof four);
}
FOVEA_INLINE uint16x4_t load_words(const void* p) {
  std::uint64_t codes;
  __builtin_memcpy(&codes, p, sizeof codes);
  return vcreate_u16(codes);
}
FOVEA_INLINE void store_words(void* p, uint16x4_t codes) {
  const std::uint64_t four = vget_lane_u64(vreinterpret_u64_u16(codes), 0);
  __builtin_memcpy(p, &four, sizeof four);
}

FOVEA_INLINE Vec load(F32, const void* p) {
  Vec a;
  __builtin_memcpy(&a.v, p, sizeof a.v);
  return a;
}
FOVEA_INLINE Vec load(F16, const void* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(load_words(p)))}; }
FOVEA_INLINE Vec load(BF16, const void* p) { return {vreinterpretq_f32_u32(vshll_n_u16(load_words(p), 16))}; }
/// An e4m3 code shifted into place is the f16 of value / 256, subnormals included.
FOVEA_INLINE Vec load(E4M3, const void* p) {
  const int16x4_t code = vreinterpret_s16_u16(vget_low_u16(vshll_n_u8(load_bytes(p), 8)));
  const uint16x4_t half = vand_u16(vreinterpret_u16_s16(vshr_n_s16(code, 1)), vdup_n_u16(0xbf80));
  const uint16x4_t top = vdup_n_u16(0x3f80);  // of NaN, whose bits have no other meaning in f16
  const uint16x4_t nan = vshr_n_u16(vceq_u16(vand_u16(half, top), top), 1);
  return {vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(half, nan))), 256.0f)};
}
FOVEA_INLINE Vec load(I8, const void* p) { return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_bytes(p))))))}; }

/// Sixteen numbers, and those of them that kLanes codes of four bits name. The low bits of a byte hold the first of its two codes.
struct Sixteen {
  uint8x16x4_t v;
};
FOVEA_INLINE Sixteen load_sixteen(const float* p) {
  Sixteen numbers;
  __builtin_memcpy(&numbers.v, p, sizeof numbers.v);
  return numbers;
}
/// A look-up of bytes: those of number i are 4 i to 4 i + 3.
FOVEA_INLINE Vec look_up(Sixteen numbers, const void* p) {
  constexpr std::int32_t kShifts[] = {0, -4, -8, -12};
  std::uint16_t bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const uint32x4_t code = vandq_u32(vshlq_u32(vdupq_n_u32(bytes), vld1q_s32(kShifts)), vdupq_n_u32(15));
  const uint32x4_t at = vmlaq_n_u32(vdupq_n_u32(0x03020100), code, 0x04040404);
  return {vreinterpretq_f32_u8(vqtbl4q_u8(numbers.v, vreinterpretq_u8_u32(at)))};
}

FOVEA_INLINE Vec add(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
FOVEA_INLINE Vec sub(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
FOVEA_INLINE Vec mul(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
FOVEA_INLINE Vec div(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
/// b where either is NaN. The processor's own maximum would be NaN.
FOVEA_INLINE Vec max(Vec a, Vec b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
FOVEA_INLINE Vec min(Vec a, Vec b) { return {vbslq_f32(vcltq_f32(a.v, b.v), a.v, b.v)}; }
FOVEA_INLINE Vec round(Vec a) { return {vrndnq_f32(a.v)}; }
FOVEA_INLINE Vec abs(Vec a) { return {vabsq_f32(a.v)}; }
FOVEA_INLINE Vec copy_sign(Vec magnitude, Vec sign) { return {vbslq_f32(vdupq_n_u32(0x80000000), sign.v, magnitude.v)}; }
/// x < limit ? a : b; b where x is NaN.
FOVEA_INLINE Vec select_less(Vec x, Vec limit, Vec a, Vec b) { return {vbslq_f32(vcltq_f32(x.v, limit.v), a.v, b.v)}; }
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
  const int32x4_t scaled = vaddq_s32(vreinterpretq_s32_f32(p.v), vshlq_n_s32(vcvtq_s32_f32(n.v), 23));
  return {vbslq_f32(vceqq_f32(n.v, n.v), vreinterpretq_f32_s32(scaled), n.v)};
}

FOVEA_INLINE float reduce_add(Vec a) { return vaddvq_f32(a.v); }
FOVEA_INLINE float reduce_max(Vec a) {
  const Vec two = max(a, {vextq_f32(a.v, a.v, 2)});
  return vgetq_lane_f32(max(two, {vrev64q_f32(two.v)}).v, 0);
}
/// Sums of lanes: to[r * stride + i] is the sum of a[r][i].
template <int kRows, int kKeys>
FOVEA_INLINE void store_sums(float* to, std::int64_t stride, const Vec (&a)[kRows][kKeys]) {
  static_assert(kKeys == 2 || kKeys == 4);
  for (int r = 0; r < kRows; ++r) {
    const float32x4_t pairs = vpaddq_f32(a[r][0].v, a[r][1].v);
    const float32x4_t sums = vpaddq_f32(pairs, kKeys == 4 ? vpaddq_f32(a[r][kKeys - 2].v, a[r][kKeys - 1].v) : pairs);
    __builtin_memcpy(to + r * stride, &sums, kKeys * sizeof(float));
  }
}

FOVEA_INLINE void store(F32, void* p, Vec a) { __builtin_memcpy(p, &a.v, sizeof a.v); }
FOVEA_INLINE void store(F16, void* p, Vec a) { store_words(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v))); }
FOVEA_INLINE void store(BF16, void* p, Vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint16x4_t rounded = vshrn_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
  const uint16x4_t quiet = vorr_u16(vshrn_n_u32(bits, 16), vdup_n_u16(0x40));
  store_words(p, vbsl_u16(vmovn_u32(vceqq_f32(a.v, a.v)), rounded, quiet));
}
/// Rounds to nearest even, saturates at 448, keeps NaN.
FOVEA_INLINE void store(E4M3, void* p, Vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v), magnitude = vandq_u32(bits, vdupq_n_u32(0x7fffffff));
  const uint32x4_t sign = vandq_u32(vshrq_n_u32(bits, 24), vdupq_n_u32(0x80));
  const uint32x4_t rebased = vsubq_u32(magnitude, vdupq_n_u32(120U << 23));
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(rebased, 20), vdupq_n_u32(1));
  const uint32x4_t normal = vshrq_n_u32(vaddq_u32(rebased, vaddq_u32(odd, vdupq_n_u32(0x7ffff))), 20);
  const uint32x4_t small = vcvtnq_u32_f32(vmulq_n_f32(vreinterpretq_f32_u32(magnitude), 512.0f));
  uint32x4_t code = vbslq_u32(vcltq_u32(magnitude, vdupq_n_u32(0x3c800000)), small, normal);
  code = vbslq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x43dfffff)), vdupq_n_u32(0x7e), code);
  code = vbslq_u32(vcgtq_u32(magnitude, vdupq_n_u32(0x7f800000)), vdupq_n_u32(0x7f), code);
  const uint16x4_t words = vmovn_u32(vorrq_u32(code, sign));
  store_bytes(p, vmovn_u16(vcombine_u16(words, words)));
}
/// Rounds to nearest even and saturates.
FOVEA_INLINE void store(I8, void* p, Vec a) {
  const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(a.v));
  store_bytes(p, vreinterpret_u8_s8(vqmovn_s16(vcombine_s16(words, words))));
}

/// Elements [d, d + 8) of eight rows as f32: to[element * stride + row], in four squares.
template <class S>
FOVEA_INLINE void transpose_to(const void* const* rows, int d, float* to, int stride) {
  const auto pairs = [](float32x4_t a) { return vreinterpretq_f64_f32(a); };
  const auto put = [&](int element, int row, float64x2_t a) { store(F32{}, to + element * stride + row, {vreinterpretq_f32_f64(a)}); };
  for (int row = 0; row < 8; row += 4) {
    for (int element = 0; element < 8; element += 4) {
      float32x4_t r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = load(S{}, static_cast<const typename S::Code*>(rows[row + i]) + d + element).v;
      const float32x4_t even01 = vtrn1q_f32(r[0], r[1]), odd01 = vtrn2q_f32(r[0], r[1]);
      const float32x4_t even23 = vtrn1q_f32(r[2], r[3]), odd23 = vtrn2q_f32(r[2], r[3]);
      put(element, row, vtrn1q_f64(pairs(even01), pairs(even23)));
      put(element + 1, row, vtrn1q_f64(pairs(odd01), pairs(odd23)));
      put(element + 2, row, vtrn2q_f64(pairs(even01), pairs(even23)));
      put(element + 3, row, vtrn2q_f64(pairs(odd01), pairs(odd23)));
    }
  }
}

FOVEA_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace fovea::cpu::FOVEA_ISA

#include "cpu/isa/int8_in_f32.hpp"
