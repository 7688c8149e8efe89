// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "gpu/cuda/common/value_tiles.hpp"
#include "gpu/cuda/common/work_tile.cuh"

namespace fovea::gpu::sm90::dense {

/// The values of key tile `tile` of a work tile's sequence and kv head: [16 keys][column][key].
template <class Config>
__device__ inline const std::byte* value_tile_at(const typename Config::Params& params, const WorkTile& work, int tile) {
  const bool ragged = params.cu_seqlens_k != nullptr;
  const std::int64_t at = first_value_tile(ragged, params.seq_k, work.batch, work.k_begin, Config::kKeyTile) + tile;
  return params.value_tiles + (at * (params.heads / params.heads_per_kv) + work.head / params.heads_per_kv) * Config::kValueBytes;
}

}  // namespace fovea::gpu::sm90::dense
