// SPDX-License-Identifier: Apache-2.0
/// Tensors of rows, (batch, token, head, column), whose tiles end where a sequence ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpu/tensor_map.hpp"
#include "op/common/checks.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::sm90 {

/// Coordinates of the map: column, head, token of the tile, token, batch. The map begins a tile before
/// the tensor. A tile with `valid` tokens from token t on is at (tile - valid, t + valid), so that its
/// other tokens are out of bounds: they are loaded as zeros and not stored.
///
/// A box with nothing in bounds is zeros, but TMA still reads the beginning of its map. Here that may be
/// unmapped memory. Such boxes are loaded through `beyond`, which begins with the tensor.
struct ClippedRows {
  CUtensorMap map, beyond;
  const void* data = nullptr;
  detail::RowStrides strides{};
  int columns = 0, tile = 0;          ///< bounds of the first and the third coordinate
  int head_step = 1, batch_step = 1;  ///< 0 where the stride is 0, and so is the coordinate
};

inline constexpr int kSliceBytes = 128;   ///< bytes of a row in a slice of columns
inline constexpr int kSliceColumns = 64;  ///< columns of a slice of 16-bit elements

/// A tensor as a map describes it. Its rows are those of a sequence, or of a ragged batch.
struct RowsDesc {
  std::string_view name;
  DType dtype{};
  detail::RowStrides strides{};
  std::int64_t rows = 0, heads = 0, batch = 0, columns = 0;
  std::int32_t alignment = 0;
};

inline constexpr std::int64_t kCountLimit = std::int64_t{1} << 30;        ///< tokens, heads, sequences: ints in kernels
inline constexpr std::int64_t kRowStrideLimit = std::int64_t{1} << 30;    ///< elements; a map begins a tile of rows early
inline constexpr std::int64_t kOuterStrideLimit = std::int64_t{1} << 39;  ///< elements; TMA has 40 bits of bytes

/// Declines a tensor that no map describes.
inline Result<void> accept_rows(const RowsDesc& tensor) {
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

/// Rows without maps, for ordinary loads and stores. `tile`: tokens of a tile.
inline ClippedRows rows_of(const RowsDesc& tensor, const void* data, int tile) {
  ClippedRows rows{};
  rows.data = data;
  rows.strides = tensor.strides;
  rows.columns = static_cast<int>(tensor.columns);
  rows.tile = tile;
  rows.head_step = tensor.strides.head == 0 ? 0 : 1;
  rows.batch_step = tensor.batch == 1 || tensor.strides.batch == 0 ? 0 : 1;
  return rows;
}

/// Adds the maps to the result of rows_of(). `heads`: heads of a box.
inline Result<void> encode_rows(ClippedRows& rows, const RowsDesc& tensor, int heads = 1) {
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
  const auto* base = static_cast<const std::byte*>(rows.data) - rows.tile * row * element_bytes;
  const Result<CUtensorMap> map = encode_tensor_map(base, desc), beyond = encode_tensor_map(rows.data, desc);
  if (!map) return map.error();
  if (!beyond) return beyond.error();
  rows.map = *map;
  rows.beyond = *beyond;
  return {};
}

}  // namespace fovea::gpu::sm90
