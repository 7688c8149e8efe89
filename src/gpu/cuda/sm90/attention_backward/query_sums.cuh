// SPDX-License-Identifier: Apache-2.0
/// dQ of 64 queries in the accumulators of a warpgroup: how it joins that of other key tiles, and where its sum goes.
#pragma once

#include "gpu/cuda/sm90/attention_backward/score_math.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"

namespace fovea::gpu::sm90::attention_backward {

// Sums outside registers: four of a thread, those of all threads, then the next four. `at`: the thread's first.
template <int kCount>
__device__ __forceinline__ void put_sums(float* at, const float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) *reinterpret_cast<float4*>(at + i * 128) = {sums[i], sums[i + 1], sums[i + 2], sums[i + 3]};
}
template <int kCount>
__device__ __forceinline__ void add_sums(const float* at, float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 4) {
    const float4 earlier = __ldcg(reinterpret_cast<const float4*>(at + i * 128));
    sums[i] += earlier.x;
    sums[i + 1] += earlier.y;
    sums[i + 2] += earlier.z;
    sums[i + 3] += earlier.w;
  }
}

/// `column`: of dq, the first of these sums.
template <class Element, int kCount>
__device__ __forceinline__ void store_query_gradient(const Params& params, const Sequence& of, const Step& step, int column,
                                                     const float (&sums)[kCount]) {
  column += lane_column(lane_index());
  auto* const dq = static_cast<Element*>(const_cast<void*>(params.dq.data));
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int token = step.query_tile * kQueryTile + lane_row() + 8 * r;
    if (token >= of.seq_q) continue;
    Element* const row = dq + of.offset(params.dq.strides, of.q_begin, token, step.head) + column;
#pragma unroll
    for (int i = 2 * r; i < kCount; i += 4) {
      if (column + column_of(i) >= params.head_dim_qk) continue;
      *reinterpret_cast<std::uint32_t*>(row + column_of(i)) = pack<Element>(sums[i] * params.scale, sums[i + 1] * params.scale);
    }
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
