// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "fovea/standard.hpp"

namespace fovea {

/// How a latent (MLA) cache stores a token.
enum class CacheFormat : std::uint8_t {
  rows,            ///< a plain tensor of f32, f16, bf16 or e4m3 rows
  v32_fp8,         ///< DeepSeek V3.2: 656 bytes, token-major
  v4_fp8,          ///< DeepSeek V4: 584 bytes, block-planar
  v41_fp8,         ///< DeepSeek V4.1: 528 bytes, token-major
  v41_fp8_planar,  ///< the same bytes, block-planar
  v41_fp4,         ///< DeepSeek V4.1, extra cache only: 288 bytes, token-major
};

enum class CodeType : std::uint8_t { e4m3, e2m1 };
enum class ScaleType : std::uint8_t { f32, ue8m0, e4m3 };

/// The bytes of one token of a packed format: `codes` quantised values, one scale for each `group` of them, then `rope` plain bf16 values.
/// A value is `code * scale` in f32, exactly, rounded once to bf16 for a matrix unit.
///
/// The even one of two e2m1 values in a byte is in the low four bits. ue8m0 is a biased exponent: 2 ^ (byte - 127), 255 is NaN. Scales are
/// in the order of their groups; padding bytes (v4_fp8's eighth) follow them.
///
/// Token-major: codes, scales and rope lie side by side in this order. Planar: first `page` records of codes and rope, then `page`
/// records of scales (padded to `scale_bytes`), so a block holds `page * bytes` in either case.
struct PackedFormat {
  CacheFormat format{};
  std::string_view name{};
  CodeType code_type{};
  ScaleType scale_type{};
  int codes = 0;        ///< quantised values, the first ones of a row
  int group = 0;        ///< values that share a scale
  int rope = 0;         ///< bf16 values behind the quantised ones
  int scale_bytes = 0;  ///< of all scales of a token, padding included
  bool planar = false;

  constexpr int row() const { return codes + rope; }
  constexpr int groups() const { return codes / group; }
  constexpr int code_bytes() const { return code_type == CodeType::e2m1 ? codes / 2 : codes; }
  constexpr int bytes() const { return code_bytes() + 2 * rope + scale_bytes; }

  /// Offsets in bytes from the start of a block of `page` tokens.
  constexpr std::int64_t codes_at(std::int64_t slot) const { return slot * (planar ? code_bytes() + 2 * rope : bytes()); }
  constexpr std::int64_t scales_at(std::int64_t slot, std::int64_t page) const {
    return planar ? page * (code_bytes() + 2 * rope) + slot * scale_bytes : slot * bytes() + code_bytes();
  }
  constexpr std::int64_t rope_at(std::int64_t slot) const { return codes_at(slot) + code_bytes() + (planar ? 0 : scale_bytes); }
};

/// The one table of formats that kernels, quantisers, Python and documentation read.
inline constexpr std::array kPackedFormats{
    PackedFormat{CacheFormat::v32_fp8, "v32_fp8", CodeType::e4m3, ScaleType::f32, 512, 128, 64, 16, false},
    PackedFormat{CacheFormat::v4_fp8, "v4_fp8", CodeType::e4m3, ScaleType::ue8m0, 448, 64, 64, 8, true},
    PackedFormat{CacheFormat::v41_fp8, "v41_fp8", CodeType::e4m3, ScaleType::ue8m0, 512, 32, 0, 16, false},
    PackedFormat{CacheFormat::v41_fp8_planar, "v41_fp8_planar", CodeType::e4m3, ScaleType::ue8m0, 512, 32, 0, 16, true},
    PackedFormat{CacheFormat::v41_fp4, "v41_fp4", CodeType::e2m1, ScaleType::e4m3, 512, 16, 0, 32, false},
};

/// Null for `rows`.
constexpr const PackedFormat* packed_format(CacheFormat format) {
  for (const PackedFormat& candidate : kPackedFormats) {
    if (candidate.format == format) return &candidate;
  }
  return nullptr;
}

constexpr std::string_view name_of(CacheFormat format) {
  const PackedFormat* packed = packed_format(format);
  return packed != nullptr ? packed->name : "rows";
}

}  // namespace fovea
