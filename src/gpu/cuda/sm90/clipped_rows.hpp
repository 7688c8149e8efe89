// SPDX-License-Identifier: Apache-2.0
/// Tensors of rows, (batch, token, head, column), whose tiles end where a sequence ends.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <string_view>

#include "fovea/tensor.hpp"
#include "gpu/launch.hpp"
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
Result<void> accept_rows(const RowsDesc& tensor);

/// Rows without maps, for ordinary loads and stores. `tile`: tokens of a tile.
ClippedRows rows_of(const RowsDesc& tensor, const void* data, int tile);

/// Adds the maps to the result of rows_of(). `heads`: heads of a box.
Result<void> encode_rows(ClippedRows& rows, const RowsDesc& tensor, int heads = 1);
/// The same for rows that are stored and not loaded, so without `beyond`.
Result<void> encode_stored_rows(ClippedRows& rows, const RowsDesc& tensor, int heads = 1);

}  // namespace fovea::gpu::sm90
