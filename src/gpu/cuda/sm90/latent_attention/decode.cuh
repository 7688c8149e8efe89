// SPDX-License-Identifier: Apache-2.0
/// Codes of 8 and 4 bits as matrix operands: code * scale in f32, exactly, rounded once.
#pragma once

#include <cstdint>

#include "fovea/cache_format.hpp"
#include "gpu/common/codes.cuh"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "gpu/cuda/sm90/ptx.cuh"

namespace fovea::gpu::sm90::latent {

/// The packed format behind a kind of row; the planar v41_fp8 differs only in where its scales lie.
template <Row kRow>
constexpr PackedFormat format_of() {
  static_assert(kRow != Row::plain && kRow != Row::e4m3);
  constexpr CacheFormat kFormats[]{CacheFormat::v32_fp8, CacheFormat::v4_fp8, CacheFormat::v41_fp8, CacheFormat::v41_fp4};
  return *packed_format(kFormats[static_cast<int>(kRow) - static_cast<int>(Row::v32)]);
}

/// Codes and scales of a row of `kDim` values. Rows of e4m3 have one scale for the whole cache, which the math applies.
template <Row kRow, int kDim>
struct Codes {
  static constexpr int kCount = kRow == Row::e4m3 ? kDim : format_of < kRow == Row::e4m3 ? Row::v32 : kRow > ().codes;
  static constexpr bool kScaled = kRow != Row::e4m3;
  static constexpr int kBits = kRow == Row::fp4 ? 4 : 8;
};

template <class Element>
__device__ inline std::uint32_t scaled(std::uint32_t halves, float scale) {
  const float2 values = floats_from_halves(halves);
  return pack<Element>(values.x * scale, values.y * scale);
}

/// Words that hold the scales of half a row's codes.
template <Row kRow>
constexpr int scale_words() {
  if constexpr (kRow == Row::e4m3) {
    return 0;
  } else {
    return kRow == Row::v4 ? 1 : format_of<kRow>().scale_bytes / 8;
  }
}

/// The scale of 16 codes: those of quarter `quarter` of a slice of the half.
template <Row kRow>
__device__ inline float scale_of(const std::uint32_t (&words)[4], int slice, int quarter) {
  if (kRow == Row::e4m3 || slice >= 4) return 1.0f;
  if (kRow == Row::v32) return __uint_as_float(words[slice / 2]);           // 128 values
  constexpr int kOfSlice = kRow == Row::v4 ? 1 : kRow == Row::v41 ? 2 : 4;  // bytes
  const int byte = slice * kOfSlice, shift = kRow == Row::v4 ? 0 : kRow == Row::v41 ? quarter / 2 * 8 : quarter * 8;
  const std::uint32_t code = words[byte / 4] >> (byte % 4 * 8 + shift) & 0xff;
  if constexpr (kRow == Row::fp4) {
    return floats_from_halves(halves_from_e4m3(code)).x * kE2m1Unit;
  } else {
    return f32_from_ue8m0(code);
  }
}

/// Zeros unless `valid`: without a branch, so that loads stay where they are written. Read once: kept out of the first-level cache.
template <int kWords>
__device__ inline void load_words(const std::byte* from, bool valid, std::uint32_t (&to)[4]) {
  if constexpr (kWords == 1) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.nc.L1::no_allocate.b32 %0, [%1];\n}"
                 : "=&r"(to[0])
                 : "l"(from), "r"(static_cast<int>(valid)));
  } else if constexpr (kWords == 2) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n"
        "@p ld.global.nc.L1::no_allocate.v2.b32 {%0, %1}, [%2];\n}"
        : "=&r"(to[0]), "=&r"(to[1])
        : "l"(from), "r"(static_cast<int>(valid)));
  } else if constexpr (kWords == 4) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
        "@p ld.global.nc.L1::no_allocate.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
        : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
        : "l"(from), "r"(static_cast<int>(valid)));
  }
}

/// 16 codes become 16 operands: two chunks of 16 bytes.
template <Row kRow, class Element>
__device__ inline void decode(const std::uint32_t* codes, float scale, std::uint32_t (&values)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    std::uint32_t halves;
    if constexpr (kRow == Row::fp4) {
      halves = halves_from_e2m1(codes[i / 4] >> i % 4 * 8 & 0xff);
    } else {
      halves = halves_from_e4m3(codes[i / 2] >> i % 2 * 16 & 0xffff);
    }
    if constexpr (kRow == Row::e4m3 && std::is_same_v<Element, __half>) {
      values[i] = halves;
    } else {
      values[i] = scaled<Element>(halves, scale);
    }
  }
}

}  // namespace fovea::gpu::sm90::latent
