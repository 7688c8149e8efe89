// SPDX-License-Identifier: Apache-2.0
/// The work tile of a CTA: 256 query rows of a head, as two query tiles that share their key tiles.
#pragma once

#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/sm100/attention/config.hpp"

namespace fovea::gpu::sm100::attention {

/// The index-th work tile. In a ragged batch it may begin past the end of its sequence.
__device__ inline WorkTile work_tile(const Params& params, int index) {
  const detail::TileOrder::Place at = params.order.at(index);
  WorkTile work{};
  work.batch = at.head / params.heads;
  work.head = at.head % params.heads;
  work.token = at.q_tile * Tuning::row_tile();
  work.seq_q = params.seq_q;
  work.seq_k = params.seq_k;
  if (params.cu_seqlens_q != nullptr) {
    work.q_begin = params.cu_seqlens_q[work.batch];
    work.k_begin = params.cu_seqlens_k[work.batch];
    work.seq_q = sequence_length(params.cu_seqlens_q, work.batch, params.seq_q);
    work.seq_k = sequence_length(params.cu_seqlens_k, work.batch, params.seq_k);
  }
  if (work.token < work.seq_q) work.find_keys(params, Tuning::row_tile(), kTileRows);
  return work;
}

/// Key tiles are visited from the last to the first.
__device__ inline int key_tiles(const WorkTile& work) { return work.last - work.first; }
__device__ inline int key_tile(const WorkTile& work, int number) { return work.last - 1 - number; }

}  // namespace fovea::gpu::sm100::attention
