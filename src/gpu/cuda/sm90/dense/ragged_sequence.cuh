// SPDX-License-Identifier: Apache-2.0
/// Sequences of a ragged batch, and places of their query tiles.
#pragma once

#include "gpu/cuda/common/work_tile.cuh"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm90::dense {

/// The beginning of a sequence in its tensors, and its lengths.
struct RaggedSequence {
  int q_begin, k_begin, seq_q, seq_k;
};
/// Overloaded for paged attention.
template <class Params>
__device__ RaggedSequence sequence_at(const Params& params, int index) {
  return {params.cu_seqlens_q[index], params.cu_seqlens_k[index], sequence_length(params.cu_seqlens_q, index, params.seq_q),
          sequence_length(params.cu_seqlens_k, index, params.seq_k)};
}

/// A query tile of a sequence.
struct RaggedPlace {
  int sequence;
  detail::TileOrder::Place at;
};

}  // namespace fovea::gpu::sm90::dense
