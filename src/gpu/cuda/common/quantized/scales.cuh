// SPDX-License-Identifier: Apache-2.0
/// The scales of a work tile's queries, keys and values. All 16 query rows of which a lane has two neighbours share its scale with the
/// lane's other row, and all keys of a block that a lane has share one: this is what granularity by thread follows.
#pragma once

#include <cstdint>

#include "gpu/common/score_transform.cuh"
#include "gpu/cuda/common/quantized/codes.hpp"

namespace fovea::gpu {

/// A product of codes times `unit` is a score; `log2` is above 0 and includes log2(e).
struct CodeScale {
  float unit, log2;
};

/// `Params` has `codes` and the fields of a batch: cu_seqlens_q, heads_per_kv, scale_log2. `Work`: the work tile.
template <class Params, class Work>
class Scales {
 public:
  __device__ Scales(const Params& params_, const Work& work_) : params(params_), work(work_) {}

  __device__ float of_query(int token) const {
    const std::int64_t block = first_block(work.q_begin, Int8Groups::kQBlock);
    return *at(params.codes.q_scale, work.head, block * params.codes.groups.q_per_block() + params.codes.groups.q_group(token));
  }
  __device__ float of_key(int key) const { return *at_key(key); }
  __device__ const float* at_key(int key) const {
    const std::int64_t block = first_block(work.k_begin, Int8Groups::kKBlock);
    return at(params.codes.k_scale, kv_head(), block * params.codes.groups.k_per_block() + params.codes.groups.k_group(key));
  }
  /// From a key's to that of the key a block behind it.
  __device__ std::int64_t key_block_stride() const { return params.codes.groups.k_per_block() * params.codes.k_scale.strides.row; }
  /// For a row and a key with these scales.
  __device__ CodeScale scale(float query, float key) const {
    const float log2 = log2_of(query);
    return {log2 < 0 ? -key : key, clamped_scale(fabsf(log2))};
  }
  /// Of a row, before its sign moves to the keys.
  __device__ float log2_of(float query) const { return query * params.scale_log2; }

  /// Of channels of values, or null.
  __device__ const float* value_scales() const { return channels(params.codes.v_scale); }
  __device__ const float* value_means() const { return channels(params.codes.v_mean); }
  /// A result's column of a row with keys. `x`: normalised, of values as they are stored.
  __device__ __forceinline__ float value_of(float x, int column) const {
    if (params.codes.v_scale.data != nullptr) x *= value_scales()[column];
    return params.codes.v_mean.data != nullptr ? x + value_means()[column] : x;
  }
  /// lse of a row with keys, smoothed so far.
  __device__ __forceinline__ float shifted(float lse, int token) const {
    const Numbers& shift = params.codes.lse_shift;
    if (shift.data == nullptr) return lse;
    return fmaf(params.scale, shift.data[work.offset(shift.strides, {token, work.head})], lse);
  }

 private:
  __device__ int kv_head() const { return work.head / params.heads_per_kv; }
  __device__ std::int64_t first_block(int begin, std::int64_t block) const {
    return params.cu_seqlens_q != nullptr ? Int8Groups::first_block(begin, work.batch, block) : 0;
  }
  __device__ const float* at(const Numbers& scales, int head, std::int64_t group) const {
    const std::int64_t batch = params.cu_seqlens_q != nullptr ? 0 : work.batch;
    return &scales.data[batch * scales.strides.batch + head * scales.strides.head + group * scales.strides.row];
  }
  __device__ const float* channels(const Numbers& numbers) const {
    if (numbers.data == nullptr) return nullptr;
    return numbers.data + work.batch * numbers.strides.batch + kv_head() * numbers.strides.head;
  }

  const Params& params;
  const Work& work;
};

}  // namespace fovea::gpu
