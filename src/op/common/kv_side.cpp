// SPDX-License-Identifier: Apache-2.0
#include "op/common/kv_side.hpp"

#include <array>

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kScaleAxes{"block", "page", "kv_head", "group"};

void check_codes(Checker& check, const KvSide& side, const KvRowFormat& format, const HeadDim& head_dim) {
  if (!check.ok()) return;
  const TensorDesc& codes = side.cache.desc;
  if (!format.accepts_codes(codes.dtype)) {
    check.fail(invalid(std::string(side.names.cache) + ".dtype", name_of(codes.dtype),
                       std::string(format.code == KvCode::e4m3 ? "e4m3 or i8" : "i8 (bytes)").append(" of ").append(format.name)));
  }
  const std::string subject = std::string(head_dim.tensor).append(".shape[2] (").append(head_dim.axis).append(")");
  check.expect(!check.ok() || head_dim.extent % format.dim_step() == 0, subject, head_dim.extent,
               "a multiple of " + std::to_string(format.dim_step()) + " (" + std::string(format.name) + ")");
  if (!check.ok()) return;
  check_extent(check, side.cache, 3, format.code_bytes(head_dim.extent), "bytes of codes of " + std::string(format.name));
}

void check_scale_cache(Checker& check, const KvSide& side, const KvRowFormat& format, std::int64_t head_dim) {
  const std::string_view name = side.names.scale_cache;
  if (!check.ok()) return;
  if (side.scale_cache.has_value() != format.has_scales()) {
    check.fail(
        invalid(name, format.has_scales() ? "none" : "a tensor",
                std::string(format.has_scales() ? "the scales of " : "none (").append(format.name).append(format.has_scales() ? "" : ")")));
  }
  if (!check.ok() || !format.has_scales()) return;
  const TensorDesc& scales = *side.scale_cache;
  const auto rank = static_cast<std::size_t>(format.group == 0 ? 3 : 4);
  const NamedTensor tensor{name, scales, std::span(kScaleAxes).first(rank), side.cache.is_output, format.group != 0};
  check_tensor(check, tensor);
  if (check.ok() && !format.accepts_scales(scales.dtype)) {
    constexpr std::array<std::string_view, 5> kWant{"", "f32 or f16", "f32", "e4m3 or i8", "i8"};
    check.fail(invalid(std::string(name) + ".dtype", name_of(scales.dtype),
                       std::string(kWant[static_cast<std::size_t>(format.scale)]).append(" (").append(format.name).append(")")));
  }
  check_extent(check, tensor, 0, side.cache.desc.shape[0], "blocks of the cache");
  check_extent(check, tensor, 1, side.cache.desc.shape[1], "page of the cache");
  check_extent(check, tensor, 2, side.cache.desc.shape[2], "kv_head of the cache");
  if (format.group != 0) check_extent(check, tensor, 3, format.scales(head_dim), "groups of a row");
}

}  // namespace

void check_kv_side(Checker& check, const KvSide& side, const HeadDim& head_dim, std::span<const DType> rows) {
  if (!check.ok()) return;
  const KvRowFormat* format = kv_row_format(side.format);
  check.expect(format != nullptr || side.format == KvFormat::rows, side.names.format, static_cast<std::int64_t>(side.format), "a KvFormat");
  if (!check.ok()) return;
  if (format == nullptr) {
    check_values(check, side.cache, rows);
    check_extent(check, side.cache, 3, head_dim.extent, std::string(head_dim.axis).append(" of ").append(head_dim.tensor));
    check.expect(!side.scale_cache.has_value(), side.names.scale_cache, "a tensor", "none (only formats have scales of rows)");
    return check_scale(check, side.names.scale, side.scale, side.cache.desc.dtype);
  }
  check_codes(check, side, *format, head_dim);
  check_scale_cache(check, side, *format, head_dim.extent);
  if (check.ok() && side.scale && !format->has_global) {
    check.fail(invalid(side.names.scale, std::string("a scale for ").append(format->name), "none (its rows have scales of their own)"));
  }
  check_scale(check, side.names.scale, side.scale, DType::e4m3);
}

}  // namespace fovea::detail
