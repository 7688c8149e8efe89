// SPDX-License-Identifier: Apache-2.0
/// The sequences of a ragged batch.
#pragma once

#include "gpu/cuda/common/work_tile.cuh"

namespace fovea::gpu::sm90::dense {

/// Where a sequence begins in its tensors, and its lengths.
struct RaggedSequence {
  int q_begin, k_begin, seq_q, seq_k;
};
/// Paged attention has lists of its own.
template <class Params>
__device__ RaggedSequence sequence_at(const Params& params, int index) {
  return {params.cu_seqlens_q[index], params.cu_seqlens_k[index], sequence_length(params.cu_seqlens_q, index, params.seq_q),
          sequence_length(params.cu_seqlens_k, index, params.seq_k)};
}

}  // namespace fovea::gpu::sm90::dense
