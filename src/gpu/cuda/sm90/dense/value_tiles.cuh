// SPDX-License-Identifier: Apache-2.0
/// Transposition of e4m3 values into value tiles (gpu/cuda/common/value_tiles.hpp): V by rows becomes V^T
/// by key tiles. The kernel is in value_tiles.cu.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/launch.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu::sm90::dense {

struct ValueTiles {
  std::byte* data = nullptr;
  const void* v = nullptr;
  detail::RowStrides strides{};
  const std::int32_t* cu_seqlens_k = nullptr;  ///< [batch + 1], of a ragged batch
  int batch = 0, seq_k = 0;                    ///< seq_k is a bound of a ragged batch
  int kv_heads = 0, head_dim = 0;
  int key_tile = 0, columns = 0;  ///< shape of a tile
  std::int64_t count = 0;         ///< tiles of all heads

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
  tiles.count = value_tile_count(p, key_tile);
  return tiles;
}

/// `to`: the workspace for `tiles`, whose pointers are null.
CudaStatus launch_transpose(ValueTiles tiles, const void* v, const std::int32_t* cu_seqlens_k, void* to, Stream stream);

/// Address of the values of key tile `tile`, for a work tile's sequence and kv head:
/// [16 keys][column][key].
template <class Config>
__device__ inline const std::byte* value_tile_at(const typename Config::Params& params, const WorkTile& work, int tile) {
  const bool ragged = params.cu_seqlens_k != nullptr;
  const std::int64_t at = first_value_tile(ragged, params.seq_k, work.batch, work.k_begin, Config::kKeyTile) + tile;
  const int kv_heads = params.heads / params.heads_per_kv;
  return params.value_tiles + (at * kv_heads + work.head / params.heads_per_kv) * Config::kValueBytes;
}

}  // namespace fovea::gpu::sm90::dense
