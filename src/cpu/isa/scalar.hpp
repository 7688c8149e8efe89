// SPDX-License-Identifier: Apache-2.0
/// No instruction beyond the compiler's baseline: four lanes of the compiler's portable vectors, on any architecture.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/isa/storage.hpp"
#include "op/common/numeric.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kLanes = 4;
inline constexpr int kBlockRows = 4;  // 4 x 8
inline constexpr int kPanelVectors = 2;
inline constexpr int kStreamSums = 8;  // accumulators of the streamed products

inline constexpr int kRowBytes = 512 << 10;   // rows of q and out that share a packing
inline constexpr int kTileBytes = 512 << 10;  // packed K and V: what a second-level cache holds

struct Vec {
  typedef float Lanes __attribute__((vector_size(16)));
  typedef std::int32_t Bits __attribute__((vector_size(16)));
  Lanes v;
};

struct Two {
  Vec first, second;
};

FOVEA_INLINE Vec zero() { return {Vec::Lanes{0, 0, 0, 0}}; }
FOVEA_INLINE Vec splat(float x) { return {Vec::Lanes{x, x, x, x}}; }
FOVEA_INLINE Vec keep(Vec a) { return a; }
FOVEA_INLINE Vec broadcast(const float* p) { return splat(*p); }

FOVEA_INLINE float decode(F16, std::uint16_t code) { return detail::f32_from_f16(code); }
FOVEA_INLINE float decode(BF16, std::uint16_t code) { return detail::f32_from_bf16(code); }
FOVEA_INLINE float decode(E4M3, std::uint8_t code) { return detail::f32_from_e4m3(code); }
FOVEA_INLINE float decode(I8, std::int8_t code) { return code; }
FOVEA_INLINE std::uint16_t encode(F16, float x) { return detail::f16_from_f32(x); }
FOVEA_INLINE std::uint16_t encode(BF16, float x) { return detail::bf16_from_f32(x); }
FOVEA_INLINE std::uint8_t encode(E4M3, float x) { return detail::e4m3_from_f32(x); }

/// Adding 1.5 * 2^23 rounds to an integer, to nearest even.
FOVEA_INLINE std::int8_t encode(I8, float x) { return static_cast<std::int8_t>((x + 0x1.8p23f) - 0x1.8p23f); }

FOVEA_INLINE Vec load(F32, const void* p) {
  Vec a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
template <class S>
FOVEA_INLINE Vec load(S storage, const void* p) {
  typename S::Code codes[kLanes];
  std::memcpy(codes, p, sizeof codes);
  return {Vec::Lanes{decode(storage, codes[0]), decode(storage, codes[1]), decode(storage, codes[2]), decode(storage, codes[3])}};
}
/// Sixteen numbers, and those of them that kLanes codes of four bits name. The low bits of a byte hold the first of its two codes.
struct Sixteen {
  const float* p;
};
FOVEA_INLINE Sixteen load_sixteen(const float* p) { return {p}; }
FOVEA_INLINE Vec look_up(Sixteen numbers, const void* p) {
  const auto* codes = static_cast<const std::uint8_t*>(p);
  const float* of = numbers.p;
  return {Vec::Lanes{of[codes[0] & 15], of[codes[0] >> 4], of[codes[1] & 15], of[codes[1] >> 4]}};
}

FOVEA_INLINE void store(F32, void* p, Vec a) { std::memcpy(p, &a.v, sizeof a.v); }
template <class S>
FOVEA_INLINE void store(S storage, void* p, Vec a) {
  const typename S::Code codes[kLanes] = {encode(storage, a.v[0]), encode(storage, a.v[1]), encode(storage, a.v[2]),
                                          encode(storage, a.v[3])};
  std::memcpy(p, codes, sizeof codes);
}

FOVEA_INLINE Vec add(Vec a, Vec b) { return {a.v + b.v}; }
FOVEA_INLINE Vec sub(Vec a, Vec b) { return {a.v - b.v}; }
FOVEA_INLINE Vec mul(Vec a, Vec b) { return {a.v * b.v}; }
FOVEA_INLINE Vec div(Vec a, Vec b) { return {a.v / b.v}; }
FOVEA_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
/// b where either is NaN.
FOVEA_INLINE Vec max(Vec a, Vec b) { return {a.v > b.v ? a.v : b.v}; }
FOVEA_INLINE Vec min(Vec a, Vec b) { return {a.v < b.v ? a.v : b.v}; }
/// Adding 1.5 * 2^23 rounds every |a| < 2^22 to an integer.
FOVEA_INLINE Vec round(Vec a) {
  const Vec magic = splat(0x1.8p23f);
  return {(a.v + magic.v) - magic.v};
}
FOVEA_INLINE Vec abs(Vec a) { return {std::bit_cast<Vec::Lanes>(std::bit_cast<Vec::Bits>(a.v) & INT32_MAX)}; }
FOVEA_INLINE Vec copy_sign(Vec magnitude, Vec sign) {
  return {std::bit_cast<Vec::Lanes>((std::bit_cast<Vec::Bits>(magnitude.v) & INT32_MAX) | (std::bit_cast<Vec::Bits>(sign.v) & INT32_MIN))};
}
/// x < limit ? a : b; b where x is NaN.
FOVEA_INLINE Vec select_less(Vec x, Vec limit, Vec a, Vec b) { return {x.v < limit.v ? a.v : b.v}; }
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
  const Vec::Bits shifted = std::bit_cast<Vec::Bits>(n.v + splat(0x1.8p23f).v) << 23;  // the magic number leaves n in the low bits
  const Vec::Lanes scaled = std::bit_cast<Vec::Lanes>(std::bit_cast<Vec::Bits>(p.v) + shifted);
  return {n.v == n.v ? scaled : n.v};
}

FOVEA_INLINE float reduce_add(Vec a) { return (a.v[0] + a.v[1]) + (a.v[2] + a.v[3]); }
FOVEA_INLINE float reduce_max(Vec a) {
  const float low = a.v[0] > a.v[1] ? a.v[0] : a.v[1], high = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
  return low > high ? low : high;
}
/// Sums of lanes: to[r * stride + i] is the sum of a[r][i].
template <int kRows, int kKeys>
FOVEA_INLINE void store_sums(float* to, std::int64_t stride, const Vec (&a)[kRows][kKeys]) {
  for (int r = 0; r < kRows; ++r) {
    for (int i = 0; i < kKeys; ++i) to[r * stride + i] = reduce_add(a[r][i]);
  }
}
FOVEA_INLINE float decode(F32, float code) { return code; }
/// Elements [d, d + 8) of eight rows as f32: to[element * stride + row].
template <class S>
FOVEA_INLINE void transpose_to(const void* const* rows, int d, float* to, int stride) {
  for (int row = 0; row < 8; ++row) {
    const auto* codes = static_cast<const typename S::Code*>(rows[row]) + d;
    for (int i = 0; i < 8; ++i) to[i * stride + row] = decode(S{}, codes[i]);
  }
}
FOVEA_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace fovea::cpu::FOVEA_ISA

#include "cpu/isa/int8_in_f32.hpp"
