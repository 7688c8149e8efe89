// SPDX-License-Identifier: Apache-2.0
/// e4m3 products contract contiguous elements of both operands, so V is transposed by a kernel of its own, into key tiles as they lie in
/// shared memory: [tile][kv_head][16 keys][column][key], zeros past the sequence's end and the head dim.
///
/// Keys of a 16 are in the order of a lane's accumulators: four neighbours are keys 2t, 2t + 1, 2t + 8, 2t + 9. So the probabilities that a
/// lane has of these are its registers of the first operand (round_to in products.cuh).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "gpu/runtime.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::gpu::sm90::dense {

/// The first tile of a sequence: each has one at least. Of a ragged batch, no sum over the others is needed, and tiles are left over.
constexpr std::int64_t first_value_tile(bool ragged, int seq_k, int sequence, int k_begin, int key_tile) {
  return ragged ? k_begin / key_tile + sequence : std::int64_t{sequence} * std::max((seq_k + key_tile - 1) / key_tile, 1);
}

struct ValueTiles {
  std::byte* data = nullptr;
  const void* v = nullptr;
  detail::RowStrides strides{};
  const std::int32_t* cu_seqlens_k = nullptr;  ///< [batch + 1], of a ragged batch
  int batch = 0, seq_k = 0;                    ///< a bound of a ragged batch
  int kv_heads = 0, head_dim = 0;
  int key_tile = 0, columns = 0;  ///< of a tile
  std::int64_t count = 0;         ///< of all heads

  constexpr std::size_t bytes() const { return static_cast<std::size_t>(count * key_tile * columns); }
  constexpr std::int64_t first(int sequence, int k_begin) const {
    return first_value_tile(cu_seqlens_k != nullptr, seq_k, sequence, k_begin, key_tile);
  }
};

/// Without pointers. `Problem`: of attention.
template <class Problem>
ValueTiles value_tiles_of(const Problem& p, int key_tile, int columns) {
  ValueTiles tiles{.strides = p.v, .batch = static_cast<int>(p.batch), .seq_k = static_cast<int>(p.max_seq_k)};
  tiles.kv_heads = static_cast<int>(p.kv_heads);
  tiles.head_dim = static_cast<int>(p.head_dim_v);
  tiles.key_tile = key_tile;
  tiles.columns = columns;
  tiles.count = (p.ragged ? p.total_k / key_tile + p.batch : tiles.first(tiles.batch, 0)) * p.kv_heads;
  return tiles;
}

Result<void> launch_transpose(const ValueTiles& tiles, Stream stream);

}  // namespace fovea::gpu::sm90::dense
