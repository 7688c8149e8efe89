// SPDX-License-Identifier: Apache-2.0
#include "op/common/latent_cache.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace fovea::detail {
namespace {

constexpr std::array<std::string_view, 4> kRowAxes{"block", "page", "kv_head", "d"};
constexpr std::array kRowDTypes{DType::f32, DType::f16, DType::bf16, DType::e4m3};

std::string field(std::string_view name, std::string_view rest) { return std::string(name).append(".").append(rest); }

LatentCacheView plain_view(Checker& check, std::string_view name, const LatentCacheDesc& desc) {
  const std::string rows_name = field(name, "rows");
  const NamedTensor rows{rows_name, desc.rows, kRowAxes};
  check_tensor(check, rows);
  check_dtype(check, rows, kRowDTypes);
  if (!check.ok()) return {};
  const auto& shape = desc.rows.shape;
  check.expect(shape[1] >= 1, rows_name + ".shape[1] (page)", shape[1], "1 or more");
  check.expect(shape[2] >= 1, rows_name + ".shape[2] (kv_head)", shape[2], "1 or more");
  check.expect(shape[3] == 576 || shape[3] == kLatentDim, rows_name + ".shape[3] (d)", shape[3], "576 or 512");
  LatentCacheView view{CacheFormat::rows, desc.rows.dtype, shape[0], shape[1], shape[2], shape[3], cache_strides(desc.rows)};
  view.alignment = base_alignment(desc.rows);
  return view;
}

LatentCacheView packed_view(Checker& check, std::string_view name, const LatentCacheDesc& desc, const PackedFormat& format) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  check.expect(desc.blocks >= 0 && desc.blocks < kLargest, field(name, "blocks"), desc.blocks, "0 to 2^31 - 1");
  check.expect(desc.page >= 1 && desc.page < kLargest, field(name, "page"), desc.page, "1 to 2^31 - 1");
  if (!check.ok()) return {};
  const bool alignment_ok = desc.alignment == 0 || (desc.alignment > 0 && std::has_single_bit(static_cast<std::uint32_t>(desc.alignment)));
  check.expect(alignment_ok, field(name, "alignment"), desc.alignment, "0 or a power of two");
  const std::int64_t least = desc.page * format.bytes();
  const std::int64_t stride = desc.block_stride == 0 ? least : desc.block_stride;
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 48;
  if (stride < least || stride > kMostBytes) {
    check.fail(invalid(field(name, "block_stride (bytes)"), stride,
                       std::to_string(least) + " (page * bytes of " + std::string(format.name) + ") to 2^48"));
  }
  return {desc.format, DType::bf16, desc.blocks, desc.page, 1, format.row(), {}, stride, std::max(desc.alignment, 1)};
}

}  // namespace

LatentCacheView check_latent_cache(Checker& check, std::string_view name, const LatentCacheDesc& desc) {
  if (!check.ok()) return {};
  const PackedFormat* format = packed_format(desc.format);
  if (format != nullptr) return packed_view(check, name, desc, *format);
  check.expect(desc.format == CacheFormat::rows, field(name, "format"), static_cast<std::int64_t>(desc.format), "a CacheFormat");
  return check.ok() ? plain_view(check, name, desc) : LatentCacheView{};
}

}  // namespace fovea::detail
