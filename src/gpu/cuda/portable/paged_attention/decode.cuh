// SPDX-License-Identifier: Apache-2.0
/// Eight columns of a row of any format to elements, exactly. The scale of a token stays apart.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/portable/paged_attention/codes.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {

__device__ inline bool is_nibble(KvCode code) { return code == KvCode::u4 || code == KvCode::e2m1; }

/// The factor of a row's values, and the zero point of its codes.
struct RowScale {
  float factor, zero;
};
/// `half`: the scale is f16.
__device__ __forceinline__ RowScale row_scale(const RowCodes& codes, const std::byte* scales, bool half) {
  if (codes.scale == KvScale::token_zero) {
    const unsigned bits = *reinterpret_cast<const unsigned*>(scales);
    return {__uint_as_float(bits & ~0xfu), static_cast<float>(bits & 0xf)};
  }
  if (codes.scale != KvScale::token) return {1, 0};
  return {half ? __half2float(*reinterpret_cast<const __half*>(scales)) : *reinterpret_cast<const float*>(scales), 0};
}

/// The words of eight columns, zeros where `from` is null. `kAligned`: to their size.
template <int kWords, bool kAligned>
__device__ __forceinline__ void load_row_words(std::uint32_t (&to)[kWords], const std::byte* from) {
#pragma unroll
  for (std::uint32_t& word : to) word = 0;
  if (from == nullptr) return;
  if constexpr (!kAligned) {
#pragma unroll
    for (int i = 0; i < 4 * kWords; ++i) to[i / 4] |= static_cast<std::uint32_t>(from[i]) << (i % 4 * 8);
  } else if constexpr (kWords == 4) {
    const uint4 read = *reinterpret_cast<const uint4*>(from);
    to[0] = read.x, to[1] = read.y, to[2] = read.z, to[3] = read.w;
  } else if constexpr (kWords == 2) {
    const uint2 read = *reinterpret_cast<const uint2*>(from);
    to[0] = read.x, to[1] = read.y;
  } else {
    to[0] = *reinterpret_cast<const std::uint32_t*>(from);
  }
}

template <class Codes>
__device__ __forceinline__ void halves_of_bytes(std::uint32_t (&to)[4], const std::uint32_t (&words)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t word = Codes::prepared(words[i]);
    to[2 * i] = Codes::template neighbours<0>(word);
    to[2 * i + 1] = Codes::template neighbours<1>(word);
  }
}
__device__ __forceinline__ void halves_of_codes(std::uint32_t (&to)[4], KvCode code, const std::uint32_t (&words)[2], float) {
  switch (code) {
    case KvCode::i8: return halves_of_bytes<ByteCodes<Int8Codes>>(to, words);
    case KvCode::e5m2: return halves_of_bytes<ByteCodes<E5m2Codes>>(to, words);
    default: return halves_of_bytes<ByteCodes<E4m3Codes>>(to, words);
  }
}
/// A nibble behind 0x64 is a half: 1024 plus the code.
__device__ __forceinline__ void halves_of_codes(std::uint32_t (&to)[4], KvCode code, const std::uint32_t (&words)[1], float zero) {
  const __half2 base = __float2half2_rn(1024.0f + zero);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t byte = words[0] >> (8 * i);
    if (code == KvCode::u4) {
      to[i] = bits_of(__hsub2(halves_of((byte & 0xf) | (byte & 0xf0) << 12 | 0x64006400u), base));
    } else {
      to[i] = product(halves_from_e2m1(byte & 0xff), 0x74007400u);  // kE2m1Unit
    }
  }
}

/// Eight columns as elements. `block`: the code of their scale, where blocks have one; a ue8m0 one needs bf16 elements.
template <class Element, int kWords>
__device__ __forceinline__ uint4 decoded(const RowCodes& codes, const std::uint32_t (&words)[kWords], float zero, std::uint32_t block) {
  if constexpr (kWords == 4) {
    return {words[0], words[1], words[2], words[3]};
  } else {
    std::uint32_t to[4];
    halves_of_codes(to, codes.code, words, zero);
    if (codes.scale == KvScale::block_e4m3) {
      const std::uint32_t scale = halves_from_e4m3(block | block << 8);
#pragma unroll
      for (std::uint32_t& pair : to) pair = product(pair, scale);
    }
    if constexpr (std::is_same_v<Element, __nv_bfloat16>) {
      const float scale = codes.scale == KvScale::block_ue8m0 ? f32_from_ue8m0(block) : 1.0f;
#pragma unroll
      for (std::uint32_t& pair : to) {
        const float2 values = floats_from_halves(pair);
        pair = pack<Element>(values.x * scale, values.y * scale);
      }
    }
    return {to[0], to[1], to[2], to[3]};
  }
}

}  // namespace fovea::gpu::portable::paged_attention
