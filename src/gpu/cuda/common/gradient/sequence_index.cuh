// SPDX-License-Identifier: Apache-2.0
/// The number of a sequence, by which slopes, biases and dropout are indexed.
#pragma once

#include "gpu/cuda/common/gradient/sequence.cuh"

namespace fovea::gpu::gradient {

/// The number of the sequence. In a ragged batch it follows from the number of the first query tile.
template <class Params>
__device__ inline int sequence_index(const Params& params, const Sequence& sequence) {
  if (params.cu_seqlens_q == nullptr) return sequence.batch;
  return sequence.query_tile - (sequence.q_begin - params.cu_seqlens_q[0]) / kQueryTile;
}

}  // namespace fovea::gpu::gradient
