// SPDX-License-Identifier: Apache-2.0
/// Scales of quantised tensors: fields of a kernel's parameters, and the scales of a work tile. A lane's two rows of an MMA
/// share a scale, and so do its keys of a block: granularity by thread is made for this.
#pragma once

#include <cstdint>

#include "fovea/quantized_attention.hpp"
#include "gpu/common/score_transform.cuh"
#include "op/common/strides.hpp"
#include "op/quantized_attention/problem.hpp"

namespace fovea::gpu {

/// Numbers in f32 by batch, row (or group) and head.
struct Numbers {
  const float* data = nullptr;  ///< or null
  detail::RowStrides strides{};
};

struct Codes {
  Numbers q_scale{}, k_scale{};
  Numbers v_scale{}, v_mean{};  ///< by channel
  Numbers lse_shift{};
  Int8Groups groups{};
};

/// The fields that a plan knows.
inline Codes codes_of(const detail::QuantizedAttentionProblem& p) {
  return {{nullptr, p.q_scales}, {nullptr, p.k_scales}, {nullptr, p.v_scales}, {nullptr, p.v_means}, {nullptr, p.lse_shift}, p.groups};
}

inline void fill_codes(Codes& codes, const detail::QuantizedAttentionProblem& p, const QuantizedAttentionArgs& args) {
  codes.q_scale.data = args.q_scale;
  codes.k_scale.data = args.k_scale;
  codes.v_scale.data = p.has_v_scale ? args.v_scale : nullptr;
  codes.v_mean.data = p.has_v_mean ? args.v_mean : nullptr;
  codes.lse_shift.data = p.has_lse_shift ? args.lse_shift : nullptr;
}

/// An integer score times `unit` is a score. `log2` is above 0 and includes log2(e).
struct CodeScale {
  float unit;
  float log2;
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
  /// Distance of the scales of two keys, one block apart.
  __device__ std::int64_t key_block_stride() const { return params.codes.groups.k_per_block() * params.codes.k_scale.strides.row; }
  /// The scale of a row and a key with these scales.
  __device__ CodeScale scale(float query, float key) const {
    const float log2 = log2_of(query);
    return {log2 < 0 ? -key : key, clamped_scale(fabsf(log2))};
  }
  /// A row's factor in base 2, before its sign moves to the keys.
  __device__ float log2_of(float query) const { return query * params.scale_log2; }

  /// Scales and means by channel, or null.
  __device__ const float* value_scales() const { return channels(params.codes.v_scale); }
  __device__ const float* value_means() const { return channels(params.codes.v_mean); }
  /// A column of the result of a row with keys. `x`: normalised result of the stored values.
  __device__ __forceinline__ float value_of(float x, int column) const {
    if (params.codes.v_scale.data != nullptr) x *= value_scales()[column];
    return params.codes.v_mean.data != nullptr ? x + value_means()[column] : x;
  }
  /// lse of a row with keys; `lse` is that of smoothed keys.
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
