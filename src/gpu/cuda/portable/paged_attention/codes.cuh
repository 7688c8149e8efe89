// SPDX-License-Identifier: Apache-2.0
/// Codes to halves, two by two and exactly, in registers.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "gpu/cuda/common/quantize.cuh"
#include "gpu/cuda/portable/paged_attention/formats.hpp"

namespace fovea::gpu::portable::paged_attention {

__device__ __forceinline__ std::uint32_t bits_of(__half2 pair) { return *reinterpret_cast<const std::uint32_t*>(&pair); }
__device__ __forceinline__ __half2 halves_of(std::uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }
__device__ __forceinline__ std::uint32_t product(std::uint32_t a, std::uint32_t b) { return bits_of(__hmul2(halves_of(a), halves_of(b))); }

/// Codes of 8 bits, four in a word: e4m3 values, or codes.
template <class Cache>
struct ByteCodes {
  /// Called once for each word.
  static __device__ __forceinline__ std::uint32_t prepared(std::uint32_t word) { return word; }
  /// The two neighbours that begin at byte 2 * kSecond.
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t neighbours(std::uint32_t word) {
    return halves_from_e4m3(word >> (16 * kSecond));
  }
  /// Bytes kSecond and 2 + kSecond.
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t across(std::uint32_t word) {
    return halves_from_e4m3(__byte_perm(word, 0, 0x3120) >> (16 * kSecond));
  }
};

/// The upper byte of a half.
template <>
struct ByteCodes<E5m2Codes> {
  static __device__ __forceinline__ std::uint32_t prepared(std::uint32_t word) { return word; }
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t neighbours(std::uint32_t word) {
    return __byte_perm(word, 0, kSecond ? 0x3424 : 0x1404);
  }
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t across(std::uint32_t word) {
    return __byte_perm(word, 0, kSecond ? 0x3414 : 0x2404);
  }
};

/// An unsigned byte behind 0x64 is a half: 1024 plus the byte.
template <>
struct ByteCodes<Int8Codes> {
  static __device__ __forceinline__ std::uint32_t prepared(std::uint32_t word) { return word ^ 0x80808080; }
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t neighbours(std::uint32_t word) {
    return centred(__byte_perm(word, 0x64646464, kSecond ? 0x4342 : 0x4140));
  }
  template <int kSecond>
  static __device__ __forceinline__ std::uint32_t across(std::uint32_t word) {
    return centred(__byte_perm(word, 0x64646464, kSecond ? 0x4341 : 0x4240));
  }

 private:
  static __device__ __forceinline__ std::uint32_t centred(std::uint32_t halves) {
    return bits_of(__hadd2(halves_of(halves), halves_of(0xe480e480)));  // -1152
  }
};

/// Codes of 4 bits: the kIndex-th of each half of a word.
template <class Cache>
struct NibbleCodes;

/// A code is a subnormal half: unit() of the code.
template <>
struct NibbleCodes<Int4Codes> {
  template <int kIndex>
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word) {
    return (kIndex < 2 ? word : word >> 8) & (kIndex % 2 ? 0x00f000f0u : 0x000f000fu);
  }
};

/// The e2m1 exponent and mantissa are the lowest ones of a half: 2^-14 of the value.
template <>
struct NibbleCodes<Nvfp4Codes> {
  template <int kIndex>
  static __device__ __forceinline__ std::uint32_t halves(std::uint32_t word) {
    const std::uint32_t bytes = upper_bytes<kIndex % 2>(word);
    return (kIndex < 2 ? bytes << 8 : bytes) & 0x8e008e00u;
  }

 private:
  /// Upper bytes of the halves of even or odd codes, with other bits between. Two pairs share them.
  template <int kOdd>
  static __device__ __forceinline__ std::uint32_t upper_bytes(std::uint32_t word) {
    const std::uint32_t signs = kOdd ? word : word << 4, sizes = kOdd ? word >> 3 : word << 1;
    std::uint32_t bytes;  // the compiler would mask each pair by itself
    asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(bytes) : "r"(signs), "r"(sizes), "n"(0x80808080));  // signs where the mask has ones
    return bytes;
  }
};

template <>
struct NibbleCodes<Mxfp4Codes> : NibbleCodes<Nvfp4Codes> {};

/// The factor from a column's or key's halves to codes, or to values before a global scale. e2m1 codes have one unit. Odd int4 codes
/// of a byte lie four bits higher than even ones.
template <class Cache>
__device__ constexpr float code_unit(int odd) {
  if constexpr (CacheFormat<Cache>::kZeroPoints) return odd ? 0x1p20f : 0x1p24f;
  return CacheFormat<Cache>::kBits == 4 ? 0x1p14f : 1.0f;
}

}  // namespace fovea::gpu::portable::paged_attention
