// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fovea/standard.hpp"
#include "fovea/tensor.hpp"

namespace fovea {

/// How a paged cache stores the rows of K or of V. A row is one token of one kv head.
enum class KvFormat : std::uint8_t {
  rows,        ///< a plain tensor: its dtype says it
  int8_token,  ///< int8 codes, a scale for each row
  e4m3_token,  ///< e4m3 codes, a scale for each row
  int4_token,  ///< 4-bit codes, a scale and a zero point for each row
  e5m2,        ///< e5m2 codes, the optional k_scale or v_scale
  nvfp4,       ///< e2m1 codes, an e4m3 scale for 16 values, the optional k_scale or v_scale
  mxfp4,       ///< e2m1 codes, a ue8m0 scale for 32 values
  mxfp8,       ///< e4m3 codes, a ue8m0 scale for 32 values
};

enum class KvCode : std::uint8_t { i8, e4m3, e5m2, u4, e2m1 };

/// `token` is f32 or f16, as the tensor of scales says. `token_zero` is f32, whose four lowest bits are the zero point.
enum class KvScale : std::uint8_t { none, token, token_zero, block_e4m3, block_ue8m0 };

/// A row of codes has code_bytes(dim) bytes. The even one of two 4-bit codes in a byte is in the low four bits.
///
/// Scales lie in a tensor of their own, [block, page, kv_head] or, of blocks of values, [block, page, kv_head, dim / group]. Its strides
/// are free: scales behind the codes of their row are a view into the memory of the codes.
///
/// A value is `code * scale`, `(code - zero) * scale` of int4_token. nvfp4 and e5m2 also multiply by k_scale or v_scale, 1 without one.
/// The scale of int4_token is the f32 number with its four lowest bits cleared. ue8m0 is 2 ^ (byte - 127); 255 is NaN.
struct KvRowFormat {
  KvFormat format{};
  std::string_view name{};
  KvCode code{};
  KvScale scale{};
  int group = 0;            ///< values that share a scale; 0: the row
  bool has_global = false;  ///< k_scale or v_scale may be given

  constexpr int code_bits() const { return code == KvCode::u4 || code == KvCode::e2m1 ? 4 : 8; }
  constexpr std::int64_t code_bytes(std::int64_t dim) const { return dim / 8 * code_bits() + dim % 8 * code_bits() / 8; }
  /// head_dim is a multiple of this.
  constexpr int dim_step() const { return group != 0 ? group : 8 / code_bits(); }
  constexpr bool has_scales() const { return scale != KvScale::none; }
  /// Scales of a row.
  constexpr std::int64_t scales(std::int64_t dim) const { return !has_scales() ? 0 : group == 0 ? 1 : dim / group; }
  constexpr bool accepts_scales(DType dtype) const {
    switch (scale) {
      case KvScale::none: return false;
      case KvScale::token: return dtype == DType::f32 || dtype == DType::f16;
      case KvScale::token_zero: return dtype == DType::f32;
      case KvScale::block_e4m3: return dtype == DType::e4m3 || dtype == DType::i8;
      case KvScale::block_ue8m0: return dtype == DType::i8;
    }
    return false;
  }
  /// i8 is a byte of any codes.
  constexpr bool accepts_codes(DType dtype) const { return dtype == DType::i8 || (dtype == DType::e4m3 && code == KvCode::e4m3); }
  /// Bytes of a row with its scales, and where they begin if they lie behind the codes.
  constexpr std::int64_t row_bytes(std::int64_t dim, DType scale_dtype) const {
    return code_bytes(dim) + scales(dim) * static_cast<std::int64_t>(size_of(scale_dtype));
  }
  constexpr std::int64_t scales_at(std::int64_t dim) const { return code_bytes(dim); }
};

/// The one table of formats that kernels, quantisers, Python and documentation read.
inline constexpr std::array kKvFormats{
    KvRowFormat{KvFormat::int8_token, "int8_token", KvCode::i8, KvScale::token, 0, false},
    KvRowFormat{KvFormat::e4m3_token, "e4m3_token", KvCode::e4m3, KvScale::token, 0, false},
    KvRowFormat{KvFormat::int4_token, "int4_token", KvCode::u4, KvScale::token_zero, 0, false},
    KvRowFormat{KvFormat::e5m2, "e5m2", KvCode::e5m2, KvScale::none, 0, true},
    KvRowFormat{KvFormat::nvfp4, "nvfp4", KvCode::e2m1, KvScale::block_e4m3, 16, true},
    KvRowFormat{KvFormat::mxfp4, "mxfp4", KvCode::e2m1, KvScale::block_ue8m0, 32, false},
    KvRowFormat{KvFormat::mxfp8, "mxfp8", KvCode::e4m3, KvScale::block_ue8m0, 32, false},
};

/// Null for `rows`, and for a number that is no format.
constexpr const KvRowFormat* kv_row_format(KvFormat format) {
  for (const KvRowFormat& candidate : kKvFormats) {
    if (candidate.format == format) return &candidate;
  }
  return nullptr;
}

constexpr std::string_view name_of(KvFormat format) {
  const KvRowFormat* row = kv_row_format(format);
  return row != nullptr ? row->name : "rows";
}

constexpr std::string_view name_of(KvCode code) {
  constexpr std::array<std::string_view, 5> kNames{"i8", "e4m3", "e5m2", "u4", "e2m1"};
  return kNames[static_cast<std::size_t>(code)];
}

constexpr std::string_view name_of(KvScale scale) {
  constexpr std::array<std::string_view, 5> kNames{"none", "token", "token_zero", "block_e4m3", "block_ue8m0"};
  return kNames[static_cast<std::size_t>(scale)];
}

}  // namespace fovea
