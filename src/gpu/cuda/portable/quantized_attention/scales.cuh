// SPDX-License-Identifier: Apache-2.0
/// The scales of a work tile's queries and keys. All 16 query rows of which a lane has two neighbours share its scale with the lane's other
/// row, and all keys of a block that a lane has share one: this is what granularity by thread follows.
#pragma once

#include <cfloat>

#include "gpu/common/softmax.cuh"
#include "gpu/cuda/portable/quantized_attention/storage.cuh"

namespace fovea::gpu::portable::quantized_attention {

/// A product of codes times `unit` is a score; `log2` is above 0 and includes log2(e).
struct ScoreScale {
  float unit, log2;
};

class Scales {
 public:
  __device__ Scales(const Params& params_, const WorkTile& work_) : params(params_), work(work_) {}

  __device__ float of_query(int token) const {
    const std::int64_t block = first_block(work.q_begin, Int8Groups::kQBlock);
    return *at(params.q_scale, work.head, block * params.groups.q_per_block() + params.groups.q_group(token));
  }
  __device__ float of_key(int key) const { return *at_key(key); }
  __device__ const float* at_key(int key) const {
    const std::int64_t block = first_block(work.k_begin, Int8Groups::kKBlock);
    return at(params.k_scale, work.head / params.heads_per_kv, block * params.groups.k_per_block() + params.groups.k_group(key));
  }
  /// From a key's to that of the key a block behind it.
  __device__ std::int64_t key_block_stride() const { return params.groups.k_per_block() * params.k_scale.strides.row; }
  /// For a row and a key with these scales.
  __device__ ScoreScale scale(float query, float key) const {
    const float log2 = query * params.scale_log2;
    return {log2 < 0 ? -key : key, clamped(fabsf(log2))};
  }

 private:
  __device__ std::int64_t first_block(int begin, std::int64_t block) const {
    return params.cu_seqlens_q != nullptr ? Int8Groups::first_block(begin, work.batch, block) : 0;
  }
  __device__ const float* at(const Numbers& scales, int head, std::int64_t group) const {
    const std::int64_t batch = params.cu_seqlens_q != nullptr ? 0 : work.batch;
    return &scales.data[batch * scales.strides.batch + head * scales.strides.head + group * scales.strides.row];
  }
  /// NaN stays NaN, and minus infinity times it is minus infinity.
  static __device__ float clamped(float scale) { return scale < FLT_MIN ? FLT_MIN : scale > FLT_MAX ? FLT_MAX : scale; }

  const Params& params;
  const WorkTile& work;
};

}  // namespace fovea::gpu::portable::quantized_attention
