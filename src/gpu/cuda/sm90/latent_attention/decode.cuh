// SPDX-License-Identifier: Apache-2.0
/// Rows of quantised values: how lanes load them, and how 8- and 4-bit codes become MMA operands (value * scale in f32, rounded once).
#pragma once

#include <cstdint>
#include <type_traits>

#include "fovea/cache_format.hpp"
#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/sm90/fragment.cuh"
#include "gpu/cuda/sm90/latent_attention/params.hpp"

namespace fovea::gpu::sm90::latent {

/// The packed format of a kind of row. The planar v41_fp8 only has its scales elsewhere.
template <Row kRow>
constexpr PackedFormat format_of() {
  static_assert(kRow != Row::plain && kRow != Row::e4m3);
  constexpr CacheFormat kFormats[]{CacheFormat::v32_fp8, CacheFormat::v4_fp8, CacheFormat::v41_fp8, CacheFormat::v41_fp4};
  return *packed_format(kFormats[static_cast<int>(kRow) - static_cast<int>(Row::v32)]);
}

/// Codes of a row of `kDim` values. Consumers apply the one scale of an e4m3 cache.
template <Row kRow, int kDim>
struct Codes {
  static constexpr int kCount = kRow == Row::e4m3 ? kDim : format_of < kRow == Row::e4m3 ? Row::v32 : kRow > ().codes;
  static constexpr int kBits = kRow == Row::fp4 ? 4 : 8;
};

using gpu::halves_from_e4m3;
/// Four e4m3 codes as two pairs of halves. The instruction reads the high codes without a shift.
__device__ inline void halves_from_e4m3(std::uint32_t codes, std::uint32_t& first, std::uint32_t& second) {
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
      : "=r"(first), "=r"(second)
      : "r"(codes));
}

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

/// The scale of the 16 codes in one quarter of a slice.
template <Row kRow>
__device__ inline float scale_of(const std::uint32_t (&words)[4], int slice, int quarter) {
  if (kRow == Row::e4m3) return 1.0f;
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

/// Volatile, as stores to shared memory are: ptxas would sink all loads behind all stores and then wait for them. kLine prefetches the
/// whole 128-byte line into L2.
template <int kWords, bool kLine = false>
__device__ inline void load_words(const std::byte* from, std::uint32_t (&to)[4]) {
  if constexpr (kWords == 1) {
    asm volatile("ld.volatile.global.b32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.volatile.global.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  } else if constexpr (kWords == 4 && kLine) {
    asm volatile("ld.volatile.global.L2::128B.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  } else if constexpr (kWords == 4) {
    asm volatile("ld.volatile.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
  }
}

/// Decodes 16 codes into 16 values of an operand: two chunks of 16 bytes.
template <Row kRow, class Element>
__device__ inline void decode(const std::uint32_t* codes, float scale, std::uint32_t (&chunks)[2][4]) {
  std::uint32_t* values = chunks[0];
#pragma unroll
  for (int i = 0; i < 8; i += 2) {
    if constexpr (kRow == Row::fp4) {
      values[i] = halves_from_e2m1(codes[i / 4] >> i % 4 * 8 & 0xff);
      values[i + 1] = halves_from_e2m1(codes[i / 4] >> (i % 4 + 1) * 8 & 0xff);
    } else {
      halves_from_e4m3(codes[i / 2], values[i], values[i + 1]);
    }
    if constexpr (kRow == Row::e4m3 && std::is_same_v<Element, __half>) continue;
    values[i] = scaled<Element>(values[i], scale);
    values[i + 1] = scaled<Element>(values[i + 1], scale);
  }
}

/// The dummy row, which is read for absent keys, without a branch.
alignas(16) __device__ constexpr std::byte kNoRow[(kHalfSlices + 1) * kSlice]{};

/// Mask that flips the signs of e4m3 codes if the cache's scale is negative. Consumers apply its magnitude.
__device__ inline std::uint32_t flip_of(const Params& params) {
  return params.cache_scale != nullptr && *params.cache_scale < 0 ? 0x80808080 : 0;
}

/// A lane's fragment of half a row: 16 codes of each slice, and the scales of all slices as they are stored.
struct HalfRow {
  std::uint32_t codes[kHalfSlices + 1][4];
  std::uint32_t scales[4];
};

template <class Config, Row kRow>
struct CodeRows {
  using Format = Codes<kRow, Config::kHeadDim>;

  /// Slices of codes in a half. The right half also has the slices of the rotary part.
  static __device__ constexpr int slices(int half) { return half == 0 ? kHalfSlices : Format::kCount / kSlice - kHalfSlices; }
  static __device__ constexpr int rope_slices(int half) { return half == 0 ? 0 : Config::kSlices - Format::kCount / kSlice; }
  static __device__ constexpr int rope_at() {
    if constexpr (kRow == Row::e4m3) {
      return 0;
    } else {
      return static_cast<int>(format_of<kRow>().rope_at(0));
    }
  }

  struct Source {
    const std::byte *codes, *scales;
  };
  /// `row`: null for an absent key. The address depends on `zero`.
  static __device__ __forceinline__ Source source_of(const std::byte* row, int scales_at, int half, int quarter, std::uint32_t zero = 0) {
    if (row == nullptr) return {kNoRow + zero, kNoRow + zero};
    // v32 scales follow the codes, so their address needs no offset of the token.
    const std::byte* scales = row + (kRow == Row::v32 ? Format::kCount : scales_at);
    return {row + (half * (kHalfSlices * kSlice) + quarter * 16) * Format::kBits / 8, scales + half * scale_words<kRow>() * 4};
  }

  /// kLine prefetches the whole line into L2, because its other half is the next slice.
  template <bool kLine = false>
  static __device__ __forceinline__ void load_slice(const Source& source, int slice, HalfRow& to) {
    load_words<Format::kBits / 2, kLine>(source.codes + slice * (kSlice * Format::kBits / 8), to.codes[slice]);
  }
  static __device__ __forceinline__ void load_scales(const Source& source, HalfRow& to) {
    load_words<scale_words<kRow>()>(source.scales, to.scales);
  }
  static __device__ __forceinline__ void load_codes(const Source& source, int half, HalfRow& to) {
    load_scales(source, to);
#pragma unroll
    for (int slice = 0; slice < slices(half); ++slice) load_slice(source, slice, to);
  }

  /// Decodes 16 codes into two neighbouring chunks. `flip` is that of flip_of().
  static __device__ __forceinline__ void decode_slice(const HalfRow& from, int slice, int quarter, std::uint32_t flip,
                                                      std::uint32_t (&chunks)[2][4]) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = kRow == Row::e4m3 ? from.codes[slice][i] ^ flip : from.codes[slice][i];
    decode<kRow, typename Config::Element>(words, scale_of<kRow>(from.scales, slice, quarter), chunks);
  }
};

}  // namespace fovea::gpu::sm90::latent
