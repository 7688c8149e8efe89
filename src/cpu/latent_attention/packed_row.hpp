// SPDX-License-Identifier: Apache-2.0
/// Decodes and encodes rows of the packed latent formats (fovea/cache_format.hpp). The plans know where the bytes lie.
#pragma once

#include "cpu/rows.hpp"
#include "fovea/cache_format.hpp"

namespace fovea::cpu::FOVEA_ISA {

inline constexpr int kMostGroups = 32;

/// Values of e2m1 codes.
alignas(64) inline constexpr float kE2m1Values[16] = {0,     0.5f,  1,  1.5f,  2,  3,  4,  6,  //
                                                      -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

FOVEA_INLINE float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

/// 2^(code - 127). The smallest one is subnormal, and 255 is NaN.
FOVEA_INLINE float decode_ue8m0(std::uint32_t code) {
  return float_of_bits(code == 255 ? 0x7fc00000U : code == 0 ? 0x00400000U : code << 23);
}

template <ScaleType kType, int kGroups>
FOVEA_INLINE void decode_scales(const std::uint8_t* codes, float* scales) {
  if constexpr (kType == ScaleType::f32) {
    __builtin_memcpy(scales, codes, kGroups * sizeof(float));
  } else if constexpr (kType == ScaleType::ue8m0) {
    for (int i = 0; i < kGroups; ++i) scales[i] = decode_ue8m0(codes[i]);
  } else {
    for (int i = 0; i < kGroups; i += kLanes) store(F32{}, scales + i, load(E4M3{}, codes + i));
  }
}

/// Loads kLanes values from value `i` on.
template <CodeType kType>
FOVEA_INLINE Vec load_values(const std::uint8_t* codes, int i) {
  if constexpr (kType == CodeType::e4m3) {
    return load(E4M3{}, codes + i);
  } else {
    return look_up(load_sixteen(kE2m1Values), codes + i / 2);
  }
}

template <int kFormat, class S>
static void decode_row(const PackedBytes& bytes, void* row) {
  constexpr PackedFormat format = kPackedFormats[kFormat];
  constexpr int kGroups = format.groups();
  auto* to = static_cast<typename S::Code*>(row);
  const auto* codes = static_cast<const std::uint8_t*>(bytes.codes);
  float scales[kMostGroups];
  decode_scales<format.scale_type, kGroups>(static_cast<const std::uint8_t*>(bytes.scales), scales);
  constexpr bool kTwo = format.code_type == CodeType::e4m3 && format.group % (2 * kLanes) == 0;
  for (int group = 0; group < kGroups; ++group) {
    const Vec scale = broadcast(scales + group);
    for (int i = group * format.group; i < (group + 1) * format.group; i += kTwo ? 2 * kLanes : kLanes) {
      if constexpr (kTwo) {
        const Two values = load_two(E4M3{}, codes + i);
        store_two(S{}, to + i, {mul(values.first, scale), mul(values.second, scale)});
      } else {
        store(S{}, to + i, mul(load_values<format.code_type>(codes, i), scale));
      }
    }
  }
  const auto* rope = static_cast<const std::uint8_t*>(bytes.rope);
  for (int i = 0; i < format.rope; i += kLanes) store(S{}, to + format.codes + i, load(BF16{}, rope + 2 * i));
}

/// max() passes over NaN, so a sum beside it collects whatever is not below infinity. Any NaN then shows in the sum.
template <class S>
static float largest_magnitude(Row source, int count) {
  const auto* from = static_cast<const typename S::Code*>(source);
  const Vec infinity = splat(__builtin_inff());
  Vec most = zero(), special = zero();
  for (int i = 0; i < count; i += kLanes) {
    const Vec size = abs(load(S{}, from + i));
    most = max(size, most);
    special = add(special, select_less(size, infinity, zero(), size));
  }
  const float sum = reduce_add(special);  // 0, infinity, or NaN
  if (sum == sum) return reduce_max(most);
  for (int i = 0;; i += kLanes) {
    float values[kLanes];
    store(F32{}, values, load(S{}, from + i));
    for (const float value : values) {
      if (value != value) return value;
    }
  }
}

/// The nearest code, ties to the even one, saturating at 6.
FOVEA_INLINE unsigned encode_nibble(float value) {
  const float size = __builtin_fabsf(value);
  const unsigned code =
      (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return code | (__builtin_signbit(value) ? 8U : 0U);
}

template <class S>
static void encode_e2m1(void* codes, Row source, float scale, int count) {
  auto* to = static_cast<std::uint8_t*>(codes);
  const auto* from = static_cast<const typename S::Code*>(source);
  for (int i = 0; i < count; i += kLanes) {
    float quotient[kLanes] = {};
    if (scale != 0) store(F32{}, quotient, div(load(S{}, from + i), splat(scale)));
    for (int j = 0; j < kLanes; j += 2) {
      to[(i + j) / 2] = static_cast<std::uint8_t>(encode_nibble(quotient[j]) | encode_nibble(quotient[j + 1]) << 4);
    }
  }
}

template <class S>
static void to_bf16(void* target, Row source, int count) {
  auto* to = static_cast<std::uint8_t*>(target);
  const auto* from = static_cast<const typename S::Code*>(source);
  for (int i = 0; i < count; i += kLanes) store(BF16{}, to + 2 * i, load(S{}, from + i));
}

inline constexpr LatentKernels kLatentKernels{
    .decode = {{decode_row<0, F32>, decode_row<0, F16>, decode_row<0, BF16>, nullptr},
               {decode_row<1, F32>, decode_row<1, F16>, decode_row<1, BF16>, nullptr},
               {decode_row<2, F32>, decode_row<2, F16>, decode_row<2, BF16>, nullptr},
               {decode_row<3, F32>, decode_row<3, F16>, decode_row<3, BF16>, nullptr},
               {decode_row<4, F32>, decode_row<4, F16>, decode_row<4, BF16>, nullptr}},
    .largest = {largest_magnitude<F32>, largest_magnitude<F16>, largest_magnitude<BF16>, nullptr},
    .encode_e2m1 = {encode_e2m1<F32>, encode_e2m1<F16>, encode_e2m1<BF16>, nullptr},
    .to_bf16 = {to_bf16<F32>, to_bf16<F16>, to_bf16<BF16>, nullptr},
};

static_assert(kPackedFormatCount == sizeof kPackedFormats / sizeof(PackedFormat));

}  // namespace fovea::cpu::FOVEA_ISA
