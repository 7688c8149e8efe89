// SPDX-License-Identifier: Apache-2.0
/// Decodes rows of the KV cache formats (fovea/kv_format.hpp) to f32, without k_scale or v_scale: the engine applies those to whole heads.
#pragma once

#include "cpu/latent_attention/packed_row.hpp"
#include "fovea/kv_format.hpp"
#include "op/common/kv_format.hpp"
#include "op/common/numeric.hpp"

namespace fovea::cpu::FOVEA_ISA {

/// The bytes of one row.
struct KvRow {
  const std::uint8_t *codes, *scales;
};

/// Scales of blocks, by their bytes.
struct BlockScales {
  float of[256];
};

template <KvScale kScale>
consteval BlockScales make_block_scales() {
  BlockScales scales{};
  for (int byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<std::uint8_t>(byte);
    scales.of[byte] = kScale == KvScale::block_e4m3 ? detail::f32_from_e4m3(code) : detail::f32_from_ue8m0(code);
  }
  return scales;
}

template <KvScale kScale>
alignas(64) inline constexpr BlockScales kBlockScales = make_block_scales<kScale>();

/// The scale of a whole row.
FOVEA_INLINE float load_row_scale(const std::uint8_t* scale, bool is_f16) {
  if (is_f16) {
    std::uint16_t codes[kLanes] = {};
    float scales[kLanes];
    __builtin_memcpy(codes, scale, sizeof codes[0]);
    store(F32{}, scales, load(F16{}, codes));
    return scales[0];
  }
  float value;
  __builtin_memcpy(&value, scale, sizeof value);
  return value;
}

/// The value of each code of an int4_token row.
FOVEA_INLINE Sixteen load_int4_values(const std::uint8_t* scale, float (&values)[16]) {
  alignas(64) constexpr float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  std::uint32_t bits;
  __builtin_memcpy(&bits, scale, sizeof bits);
  const Vec by = splat(float_of_bits(bits & ~15U)), zero_point = splat(static_cast<float>(bits & 15U));
  for (int i = 0; i < 16; i += kLanes) store(F32{}, values + i, mul(sub(load(F32{}, kCodes + i), zero_point), by));
  return load_sixteen(values);
}

/// kLanes codes of eight bits as numbers.
template <KvCode kCode>
FOVEA_INLINE Vec load_kv_codes(const std::uint8_t* codes) {
  if constexpr (kCode == KvCode::i8) return load(I8{}, codes);
  if constexpr (kCode == KvCode::e4m3) return load(E4M3{}, codes);
  if constexpr (kCode == KvCode::e5m2) {
    std::uint16_t halves[kLanes];
    for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<std::uint16_t>(codes[i] << 8);
    return load(F16{}, halves);
  }
}

/// Calls decode() for each kLanes codes of a row: decode(codes, element). Reads no byte behind the codes.
template <int kBits, class Decode>
FOVEA_INLINE void each_vector(const std::uint8_t* codes, int dim, const Decode& decode) {
  constexpr int kBytes = kLanes * kBits / 8;
  int i = 0;
  for (; i + kLanes <= dim; i += kLanes, codes += kBytes) decode(codes, i);
  if (i < dim) {
    std::uint8_t tail[kLanes < 16 ? 16 : kLanes] = {};
    __builtin_memcpy(tail, codes, static_cast<unsigned long>(dim - i) * kBits / 8);
    decode(tail, i);
  }
}

/// Writes whole vectors: the row has room up to a multiple of kLanes.
template <int kFormat>
FOVEA_INLINE void decode_kv_row(KvRow from, bool f16_scale, float* row, int dim) {
  constexpr KvRowFormat format = kKvFormats[kFormat];
  if constexpr (format.scale == KvScale::token_zero) {
    float values[16];
    const Sixteen numbers = load_int4_values(from.scales, values);
    each_vector<4>(from.codes, dim, [&](const std::uint8_t* codes, int i) { store(F32{}, row + i, look_up(numbers, codes)); });
  } else if constexpr (format.code == KvCode::e2m1) {
    const Sixteen numbers = load_sixteen(kE2m1Values);
    for (int i = 0; i < dim; i += format.group) {
      const Vec scale = broadcast(kBlockScales<format.scale>.of + from.scales[i / format.group]);
      for (int j = i; j < i + format.group; j += kLanes) store(F32{}, row + j, mul(look_up(numbers, from.codes + j / 2), scale));
    }
  } else if constexpr (format.group != 0) {
    for (int i = 0; i < dim; i += format.group) {
      const Vec scale = broadcast(kBlockScales<format.scale>.of + from.scales[i / format.group]);
      for (int j = i; j < i + format.group; j += kLanes) store(F32{}, row + j, mul(load_kv_codes<format.code>(from.codes + j), scale));
    }
  } else {
    const Vec scale = splat(format.scale == KvScale::token ? load_row_scale(from.scales, f16_scale) : 1.0f);
    if constexpr (format.code == KvCode::e4m3) {
      for (; dim >= 2 * kLanes; dim -= 2 * kLanes, row += 2 * kLanes, from.codes += 2 * kLanes) {
        const Two values = load_two(E4M3{}, from.codes);
        store_two(F32{}, row, {mul(values.first, scale), mul(values.second, scale)});
      }
    }
    each_vector<8>(from.codes, dim,
                   [&](const std::uint8_t* codes, int i) { store(F32{}, row + i, mul(load_kv_codes<format.code>(codes), scale)); });
  }
}

template <int kFormat>
static void decode_kv_rows(const KvRowsSource& from, float* rows, std::int64_t stride, int dim) {
  for (int i = 0; i < from.count; ++i) {
    const KvRow row{static_cast<const std::uint8_t*>(from.codes[i]) + from.code_offset,
                    kKvFormats[kFormat].has_scales() ? static_cast<const std::uint8_t*>(from.scales[i]) + from.scale_offset : nullptr};
    decode_kv_row<kFormat>(row, from.f16_scale, rows + i * stride, dim);
  }
}

inline constexpr KvRowKernels kKvRowKernels{
    .decode = {decode_kv_rows<0>, decode_kv_rows<1>, decode_kv_rows<2>, decode_kv_rows<3>, decode_kv_rows<4>, decode_kv_rows<5>,
               decode_kv_rows<6>},
};

static_assert(kKvFormatCount == sizeof kKvFormats / sizeof(KvRowFormat));

}  // namespace fovea::cpu::FOVEA_ISA
