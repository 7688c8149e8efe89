// SPDX-License-Identifier: Apache-2.0
/// The types of queries, and of caches under them. MMAs take 16-bit operands; e4m3 values become such ones, exactly.
#pragma once

#include "fovea/cache_format.hpp"
#include "gpu/hip/cdna/wave.hpp"
#include "op/common/numeric.hpp"

namespace fovea::gpu::cdna {

/// Eight elements of 16 bits.
using Chunk = Words<4>;

struct F32 {
  using Storage = float;
  static __device__ __forceinline__ float to_f32(float x) { return x; }
  static __device__ __forceinline__ float from_f32(float x) { return x; }
};

struct F16 {
  using Storage = std::uint16_t;
  static __device__ __forceinline__ Float4 multiply_add(Short4 a, Short4 b, Float4 d) { return multiply_add_f16(a, b, d); }
#ifdef __HIP_DEVICE_COMPILE__
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
  static __device__ __forceinline__ std::uint16_t from_f32(float x) { return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x)); }
#else
  static float to_f32(std::uint16_t bits) { return detail::f32_from_f16(bits); }
  static std::uint16_t from_f32(float x) { return detail::f16_from_f32(x); }
#endif
  static __device__ __forceinline__ std::uint32_t pair(float first, float second) {
    return from_f32(first) | static_cast<std::uint32_t>(from_f32(second)) << 16;
  }
  /// Codes in the high bytes of halves. e4m3 has one exponent bit less, whose bias differs by 8. Exact, but for NaN.
  static __device__ __forceinline__ std::uint32_t from_e4m3(std::uint32_t codes) {
    return multiply_halves(shift_halves_right<1>(codes) & 0xbf80bf80u, 256.0f);
  }
};

struct Bf16 {
  using Storage = std::uint16_t;
  static __device__ __forceinline__ Float4 multiply_add(Short4 a, Short4 b, Float4 d) { return multiply_add_bf16(a, b, d); }
  static __device__ __forceinline__ float to_f32(std::uint16_t bits) { return detail::f32_from_bf16(bits); }
  static __device__ __forceinline__ std::uint16_t from_f32(float x) { return detail::bf16_from_f32(x); }
  /// Rounded to nearest even. A NaN stays one: of 16-bit operands, products and exponentials make NaNs whose low half is 0.
  static __device__ __forceinline__ std::uint32_t pair(float first, float second) {
    const auto rounded = [](float x) __device__ {
      const auto bits = std::bit_cast<std::uint32_t>(x);
      return bits + 0x7fffu + (bits >> 16 & 1u);
    };
    return high_halves(rounded(first), rounded(second));
  }
  /// e4m3 has four exponent bits less, whose bias differs by 120. Exact, but for NaN. `factor`: a power of two times 2^120.
  static __device__ __forceinline__ std::uint32_t from_e4m3(std::uint32_t codes, float factor = 0x1p120f) {
    const std::uint32_t halves = shift_halves_right<4>(codes);
    const Float2 pair = multiply_pair(std::bit_cast<float>(halves << 16 & 0x87f00000u), std::bit_cast<float>(halves & 0x87f00000u), factor);
    return high_halves(std::bit_cast<std::uint32_t>(pair[0]), std::bit_cast<std::uint32_t>(pair[1]));
  }
};

/// A cache of the type of the queries, or of e4m3. `widened<true>` also takes NaNs, which `has_nans` looks for. kGroup: values that
/// share a scale in the cache, or 0.
/// `place_of` says where element `x` of a chunk is after widening: the word, and whether in its high half.
struct Place {
  int word;
  bool high;
};
template <class Element>
struct SameCache {
  static constexpr int kBytes = 2, kGroup = 0;
  static constexpr Place place_of(int x) { return {x / 2, x % 2 == 1}; }
  /// A chunk of 16-bit elements, in the order of widened ones.
  static __device__ __forceinline__ Chunk arranged(const Chunk& chunk) { return chunk; }
  template <class Stored>
  static __device__ __forceinline__ bool has_nans(const Stored&) {
    return false;  // that would need care
  }
  template <bool kNans, int kWords>
  static __device__ __forceinline__ Words<kWords> widened(const Words<kWords>& stored, float) {
    return stored;
  }
  static __device__ __forceinline__ float at(const std::uint8_t* row, int i) {
    return Element::to_f32(load_unaligned<std::uint16_t>(row + 2 * i));
  }
};

/// Widening takes every second code of a word at once, as they lie.
template <class Element>
struct E4m3Cache {
  static constexpr int kBytes = 1, kGroup = 0;
  static constexpr Place place_of(int x) { return {x / 4 * 2 + x % 2, x % 4 >= 2}; }
  static __device__ __forceinline__ Chunk arranged(const Chunk& chunk) {
    const std::uint32_t(&w)[4] = chunk.word;
    return {{low_halves(w[0], w[1]), high_halves(w[0], w[1]), low_halves(w[2], w[3]), high_halves(w[2], w[3])}};
  }
  /// The same for anything made of words.
  template <class Stored>
  static __device__ __forceinline__ bool has_nans(const Stored& stored) {
    constexpr int kWords = sizeof(Stored) / 4;
    const auto words = std::bit_cast<Words<kWords>>(stored);
    std::uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) found |= (words.word[i] & 0x7f7f7f7fu) + 0x01010101u;  // only 0x7f reaches the high bit
    return (found & 0x80808080u) != 0;
  }
  template <bool kNans, int kWords>
  static __device__ __forceinline__ Words<2 * kWords> widened(const Words<kWords>& stored, float) {
    Words<2 * kWords> wide;
#pragma unroll
    for (int i = 0; i < 2 * kWords; ++i) {
      // Otherwise the compiler widens everything before it distinguishes between the two code paths, which takes twice the registers.
      const std::uint32_t word = kNans ? unknown(stored.word[i / 2]) : stored.word[i / 2];
      const std::uint32_t codes = i % 2 == 0 ? word << 8 : word;
      wide.word[i] = Element::from_e4m3(codes);
      if (!kNans) continue;
      wide.word[i] |= (codes & 0x7f00u) == 0x7f00u ? 0x7fffu : 0;
      wide.word[i] |= (codes & 0x7f000000u) == 0x7f000000u ? 0x7fff0000u : 0;
    }
    return wide;
  }
  static __device__ __forceinline__ float at(const std::uint8_t* row, int i) { return detail::f32_from_e4m3(row[i]); }
};

/// Latent rows of CacheFormat::v32_fp8: codes, a scale for each group of them, and rotary values. A value is `code * scale`, rounded. The
/// product with a power of two is exact, and part of widening. `widened<true>` takes other scales too.
template <class Element>
struct V32Cache : E4m3Cache<Element> {
  static constexpr PackedFormat kFormat = *packed_format(CacheFormat::v32_fp8);
  static constexpr int kCodes = kFormat.codes, kGroup = kFormat.group;
  static constexpr int kScales = kFormat.code_bytes(), kRotary = kScales + kFormat.scale_bytes;  // bytes before them
  static_assert(kFormat.groups() == 4, "one load has the scales of a token");

  /// From 2^-100 to 2^7: neither factor nor product leaves the normal numbers.
  static __device__ __forceinline__ bool is_power_of_two(float scale) {
    const auto bits = std::bit_cast<std::uint32_t>(scale);
    return (bits & 0x7fffffu) == 0 && bits - (27u << 23) <= 107u << 23;
  }
  template <bool kCareful, int kWords>
  static __device__ __forceinline__ Words<2 * kWords> widened(const Words<kWords>& stored, float scale) {
    Words<2 * kWords> wide;
    if constexpr (kCareful) {
      wide = E4m3Cache<Element>::template widened<true>(stored, 1);
#pragma unroll
      for (std::uint32_t& word : wide.word) {
        word = static_cast<std::uint32_t>(times(word & 0xffffu, scale)) | static_cast<std::uint32_t>(times(word >> 16, scale)) << 16;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        wide.word[i] = Element::from_e4m3(i % 2 == 0 ? stored.word[i / 2] << 8 : stored.word[i / 2], scale * 0x1p120f);
      }
    }
    return wide;
  }
  static __device__ __forceinline__ float at(const std::uint8_t* row, int i) {
    if (i >= kCodes) return Element::to_f32(load_unaligned<std::uint16_t>(row + kRotary + 2 * (i - kCodes)));
    const float scale = load_unaligned<float>(row + kScales + 4 * (i / kGroup));
    return Element::to_f32(Element::from_f32(detail::f32_from_e4m3(row[i]) * scale));
  }

 private:
  static __device__ __forceinline__ std::uint16_t times(std::uint32_t bits, float scale) {
    return Element::from_f32(Element::to_f32(static_cast<std::uint16_t>(bits)) * scale);
  }
};

/// Half `half` of a chunk as an operand.
template <int kWords>
__device__ __forceinline__ Short4 operand(const Words<kWords>& words, int half) {
  const Words<2> two{words.word[2 * half], words.word[2 * half + 1]};
  return std::bit_cast<Short4>(two);
}

}  // namespace fovea::gpu::cdna
