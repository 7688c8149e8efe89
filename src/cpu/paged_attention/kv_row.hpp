// SPDX-License-Identifier: Apache-2.0
/// Decodes rows of the KV cache formats (fovea/kv_format.hpp) to f32, without k_scale or v_scale: the engine applies those to whole heads.
#pragma once

#include "cpu/latent_attention/packed_row.hpp"
#include "fovea/kv_format.hpp"

namespace fovea::cpu::FOVEA_ISA {

struct KvRowScale {
  float scale, zero;
};

/// The scale of a whole row, 1 without one.
template <KvScale kScale>
FOVEA_INLINE KvRowScale load_row_scale(const KvRowSource& from) {
  KvRowScale row{1, 0};
  if constexpr (kScale == KvScale::token) {
    if (from.f16_scale) {
      std::uint16_t codes[kLanes] = {};
      float scales[kLanes];
      __builtin_memcpy(codes, from.scales, sizeof codes[0]);
      store(F32{}, scales, load(F16{}, codes));
      row.scale = scales[0];
    } else {
      __builtin_memcpy(&row.scale, from.scales, sizeof row.scale);
    }
  } else if constexpr (kScale == KvScale::token_zero) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, from.scales, sizeof bits);
    row = {float_of_bits(bits & ~15U), static_cast<float>(bits & 15U)};
  }
  return row;
}

/// kLanes codes as numbers.
template <KvCode kCode>
FOVEA_INLINE Vec load_kv_codes(const std::uint8_t* codes) {
  if constexpr (kCode == KvCode::i8) return load(I8{}, codes);
  if constexpr (kCode == KvCode::e4m3) return load(E4M3{}, codes);
  if constexpr (kCode == KvCode::e2m1) return load_values<CodeType::e2m1>(codes, 0);
  if constexpr (kCode == KvCode::e5m2) {
    std::uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint16_t>(codes[i] << 8);
    return load(F16{}, halves);
  }
  if constexpr (kCode == KvCode::u4) {
    std::int8_t bytes[kLanes < 16 ? 16 : kLanes] = {};
    for (int i = 0; i < kLanes / 2; ++i) {
      bytes[2 * i] = static_cast<std::int8_t>(codes[i] & 15);
      bytes[2 * i + 1] = static_cast<std::int8_t>(codes[i] >> 4);
    }
    return load(I8{}, bytes);
  }
}

/// Writes whole vectors: the row has room up to a multiple of kLanes. Reads no byte behind the codes.
template <int kFormat>
static void decode_kv_row(const KvRowSource& from, float* row, int count) {
  constexpr KvRowFormat format = kKvFormats[kFormat];
  constexpr int kRoom = kLanes < 16 ? 16 : kLanes;
  constexpr int kBytes = kLanes * (format.code == KvCode::u4 || format.code == KvCode::e2m1 ? 4 : 8) / 8;
  const auto* codes = static_cast<const std::uint8_t*>(from.codes);
  const auto* groups = static_cast<const std::uint8_t*>(from.scales);
  const KvRowScale of_row = load_row_scale<format.scale>(from);
  const Vec zeros = splat(of_row.zero);
  Vec scale = splat(of_row.scale);
  for (int i = 0; i < count; i += kLanes, codes += kBytes) {
    std::uint8_t tail[kRoom] = {};
    const std::uint8_t* here = codes;
    if (count - i < kLanes) {
      __builtin_memcpy(tail, codes, static_cast<unsigned long>(count - i) * kBytes / kLanes);
      here = tail;
    }
    if constexpr (format.group != 0) {
      if (i % format.group == 0) {
        // Whole vectors are read and written, so one scale gets room for a vector of them.
        const std::uint8_t code[kRoom] = {groups[i / format.group]};
        float group[kRoom];
        decode_scales<format.scale == KvScale::block_e4m3 ? ScaleType::e4m3 : ScaleType::ue8m0, 1>(code, group);
        scale = splat(group[0]);
      }
    }
    store(F32{}, row + i, mul(sub(load_kv_codes<format.code>(here), zeros), scale));
  }
}

inline constexpr KvRowKernels kKvRowKernels{
    .decode = {decode_kv_row<0>, decode_kv_row<1>, decode_kv_row<2>, decode_kv_row<3>, decode_kv_row<4>, decode_kv_row<5>,
               decode_kv_row<6>},
};

static_assert(kKvFormatCount == sizeof kKvFormats / sizeof(KvRowFormat));

}  // namespace fovea::cpu::FOVEA_ISA
