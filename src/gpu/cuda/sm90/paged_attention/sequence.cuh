// SPDX-License-Identifier: Apache-2.0
/// The sequences of a paged batch.
#pragma once

#include "gpu/cuda/sm90/dense/sequence.cuh"
#include "gpu/cuda/sm90/paged_attention/params.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// Within its bounds, whatever the lists hold.
__device__ inline dense::RaggedSequence any_sequence_at(const Params& params, int index) {
  const int rows = static_cast<int>(params.rows), begin = min(max(params.cu_seqlens_q[index], 0), rows);
  const int end = min(max(params.cu_seqlens_q[index + 1], 0), rows);
  return {begin, 0, min(max(end - begin, 0), params.seq_q), min(max(params.kv_len[index], 0), params.seq_k)};
}
/// One that the kernel after this one computes has no query rows here. TileScheduler calls it.
__device__ inline dense::RaggedSequence sequence_at(const Params& params, int index) {
  dense::RaggedSequence sequence = any_sequence_at(params, index);
  if (sequence.seq_q < params.prefill_from) sequence.seq_q = 0;
  return sequence;
}

}  // namespace fovea::gpu::sm90::paged_attention
