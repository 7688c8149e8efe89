// SPDX-License-Identifier: Apache-2.0
/// Results over several groups of keys become one: of the warps of a CTA, and of the parts that share a query tile.
#pragma once

#include "gpu/common/element.cuh"
#include "gpu/common/softmax.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"

namespace fovea::gpu::portable::paged_attention {

/// What results relative to the maximum of `of` are multiplied by, to be relative to `maximum`.
__device__ inline float weight_of(const RowState& of, float maximum, float scale_log2) {
  return rescale_factor<Warp>(of.maximum, maximum, scale_log2);
}

/// Where a slot has the partial result of a row of its query tile.
template <class Config>
__device__ std::int64_t cell_of(const Params& params, int slot, int kv_head, int row) {
  return (std::int64_t{slot} * params.kv_heads + kv_head) * Config::kRowTile + row;
}

/// to += weight * x
__device__ inline void add_weighted(float4& to, const float4& x, float weight) {
  to = {fmaf(weight, x.x, to.x), fmaf(weight, x.y, to.y), fmaf(weight, x.z, to.z), fmaf(weight, x.w, to.w)};
}
/// A factor of 0 makes zeros of everything.
__device__ inline float4 scaled(const float4& x, float factor) {
  return factor == 0 ? float4{} : float4{x.x * factor, x.y * factor, x.z * factor, x.w * factor};
}

/// A query row of the batch: token and head.
struct ResultRow {
  std::int64_t token;
  int head;

  /// The row-th packed row of a sequence.
  __device__ ResultRow(const Params& params, int q_begin, int kv_head, int row) {
    const int of_sequence = params.group.quotient(row);
    token = q_begin + of_sequence;
    head = kv_head * params.group.divisor + row - of_sequence * params.group.divisor;
  }

  __device__ void store_lse(const Params& params, const RowState& state, float scale_log2) const {
    if (params.lse == nullptr) return;
    params.lse[token * params.lse_strides.row + head * params.lse_strides.head] = lse_of(state.sum, state.maximum * scale_log2) * kLn2;
  }
  /// Sum of the denominator, with the sink's share.
  __device__ float denominator(const Params& params, const RowState& state, float scale_log2) const {
    if (params.sink == nullptr) return state.sum;
    return state.sum + exp2f(fmaf(params.sink[head], kLog2e, -state.maximum * scale_log2));
  }
  __device__ void store(const Params& params, int column, float x) const {
    const std::int64_t at = token * params.out_strides.row + head * params.out_strides.head + column;
    if (params.bf16) {
      from_f32(x, static_cast<__nv_bfloat16*>(params.out)[at]);
    } else {
      from_f32(x, static_cast<__half*>(params.out)[at]);
    }
  }
  /// Four neighbours.
  __device__ void store(const Params& params, int column, const float4& x) const {
    const std::int64_t at = token * params.out_strides.row + head * params.out_strides.head + column;
    if (params.out_aligned) {
      const uint2 packed = params.bf16 ? uint2{pack<__nv_bfloat16>(x.x, x.y), pack<__nv_bfloat16>(x.z, x.w)}
                                       : uint2{pack<__half>(x.x, x.y), pack<__half>(x.z, x.w)};
      *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(params.out) + at) = packed;
    } else {
      for (int i = 0; i < 4; ++i) store(params, column + i, i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w);
    }
  }
};

}  // namespace fovea::gpu::portable::paged_attention
