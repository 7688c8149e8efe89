// SPDX-License-Identifier: Apache-2.0
/// Tensors of rows, (batch, token, head, column), whose tiles end where a sequence ends.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "gpu/tensor_map.hpp"
#include "op/common/attention_core.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu::sm90 {

/// Coordinates of the map: column, head, token of the tile, token, batch. The map begins a tile before the tensor: a tile with `valid`
/// tokens from token t on is at (tile - valid, t + valid), so that all others are out of bounds. They are loaded as zeros and not stored.
///
/// A box with nothing in bounds is zeros, but the copy engine reads the beginning of its map all the same. Here that may be unmapped
/// memory, so such boxes are loaded through `beyond`, which begins with the tensor.
struct ClippedRows {
  CUtensorMap map, beyond;
  const void* data = nullptr;
  detail::RowStrides strides{};
  int columns = 0, tile = 0;          ///< bounds of the first and the third coordinate
  int head_step = 1, batch_step = 1;  ///< 0: the stride is 0, and so is the coordinate
};

inline constexpr int kSliceColumns = 64;  ///< of a box: rows of 128 bytes of 16-bit elements

/// What a map needs to know of a tensor. Its rows are those of a sequence, or of a ragged batch.
struct RowsDesc {
  std::string_view name;
  detail::RowStrides strides{};
  std::int64_t rows = 0, heads = 0, batch = 0, columns = 0;
  std::int32_t alignment = 0;
};

inline constexpr std::int64_t kCountLimit = std::int64_t{1} << 30;        ///< of tokens, heads and sequences, which are counted in ints
inline constexpr std::int64_t kRowStrideLimit = std::int64_t{1} << 30;    ///< elements: a map begins a tile of rows early
inline constexpr std::int64_t kOuterStrideLimit = std::int64_t{1} << 39;  ///< elements: the copy engine's 40 bits of bytes

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

/// `tile`: tokens of a tile; `heads` of one box.
inline Result<void> encode_rows(ClippedRows& to, const RowsDesc& tensor, DType dtype, const void* data, int tile, int heads = 1) {
  // Where the coordinate is always 0, any stride will do.
  const auto some = [](std::int64_t extent, std::int64_t stride) { return extent > 1 && stride > 0 ? stride : 8; };
  const std::int64_t row = some(tensor.rows, tensor.strides.row);
  TensorMapDesc desc{.dtype = dtype, .rank = 5};
  desc.dimensions = {{{tensor.columns, 1, kSliceColumns},
                      {tensor.heads, some(tensor.heads, tensor.strides.head), heads},
                      {tile, row, tile},
                      {tensor.rows + 1, row, 1},
                      {tensor.batch, some(tensor.batch, tensor.strides.batch), 1}}};
  const auto* base = static_cast<const std::byte*>(data) - tile * row * static_cast<std::int64_t>(size_of(dtype));
  const Result<CUtensorMap> map = encode_tensor_map(base, desc), beyond = encode_tensor_map(data, desc);
  if (!map) return map.error();
  if (!beyond) return beyond.error();
  to = {.map = *map,
        .beyond = *beyond,
        .data = data,
        .strides = tensor.strides,
        .columns = static_cast<int>(tensor.columns),
        .tile = tile,
        .head_step = tensor.strides.head == 0 ? 0 : 1,
        .batch_step = tensor.batch == 1 || tensor.strides.batch == 0 ? 0 : 1};
  return {};
}

}  // namespace fovea::gpu::sm90
