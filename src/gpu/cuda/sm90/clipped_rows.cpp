// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm90/clipped_rows.hpp"

#include <cstddef>
#include <string>
#include <utility>

#include "gpu/tensor_map.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu::sm90 {
namespace {

TensorMapDesc desc_of(const ClippedRows& rows, const RowsDesc& tensor, int heads) {
  const auto element_bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  // Any stride serves where the coordinate is always 0.
  const auto some = [&](std::int64_t extent, std::int64_t stride) { return extent > 1 && stride > 0 ? stride : 16 / element_bytes; };
  const std::int64_t row = some(tensor.rows, tensor.strides.row);
  TensorMapDesc desc{.dtype = tensor.dtype, .rank = 5};
  desc.dimensions = {{{tensor.columns, 1, static_cast<int>(kSliceBytes / element_bytes)},
                      {tensor.heads, some(tensor.heads, tensor.strides.head), heads},
                      {rows.tile, row, rows.tile},
                      {tensor.rows + 1, row, 1},
                      {tensor.batch, some(tensor.batch, tensor.strides.batch), 1}}};
  return desc;
}

Result<void> encode(CUtensorMap& to, const void* base, const TensorMapDesc& desc) {
  const Result<CUtensorMap> map = encode_tensor_map(base, desc);
  if (!map) return map.error();
  to = *map;
  return {};
}

/// The map of all boxes begins a tile before the tensor.
Result<void> encode_all(ClippedRows& rows, const TensorMapDesc& desc) {
  const std::int64_t tile_bytes = rows.tile * desc.dimensions[2].stride * static_cast<std::int64_t>(size_of(desc.dtype));
  return encode(rows.map, static_cast<const std::byte*>(rows.data) - tile_bytes, desc);
}

}  // namespace

Result<void> accept_rows(const RowsDesc& tensor) {
  using detail::declined;
  const std::string name(tensor.name);
  if (tensor.alignment % 16 != 0) return declined(name + " (alignment of rows in bytes)", tensor.alignment, "a multiple of 16");
  if (tensor.rows > 1 && (tensor.strides.row <= 0 || tensor.strides.row >= kRowStrideLimit)) {
    return declined(name + ".strides (rows)", tensor.strides.row, "from 1 to 2^30 - 1");
  }
  for (const auto& [extent, stride] : {std::pair{tensor.heads, tensor.strides.head}, {tensor.batch, tensor.strides.batch}}) {
    if (extent > 1 && (stride < 0 || stride >= kOuterStrideLimit)) {
      return declined(name + ".strides (heads, sequences)", stride, "from 0 to 2^39 - 1");
    }
    if (extent >= kCountLimit) return declined(name + ".shape (heads, sequences)", extent, "below 2^30");
  }
  if (tensor.rows >= kCountLimit) return declined(name + ".shape (rows)", tensor.rows, "below 2^30");
  return {};
}

ClippedRows rows_of(const RowsDesc& tensor, const void* data, int tile) {
  ClippedRows rows{};
  rows.data = data;
  rows.strides = tensor.strides;
  rows.columns = static_cast<int>(tensor.columns);
  rows.tile = tile;
  rows.head_step = tensor.strides.head == 0 ? 0 : 1;
  rows.batch_step = tensor.batch == 1 || tensor.strides.batch == 0 ? 0 : 1;
  return rows;
}

Result<void> encode_stored_rows(ClippedRows& rows, const RowsDesc& tensor, int heads) {
  return encode_all(rows, desc_of(rows, tensor, heads));
}

Result<void> encode_rows(ClippedRows& rows, const RowsDesc& tensor, int heads) {
  const TensorMapDesc desc = desc_of(rows, tensor, heads);
  if (Result<void> good = encode_all(rows, desc); !good) return good;
  return encode(rows.beyond, rows.data, desc);
}

}  // namespace fovea::gpu::sm90
