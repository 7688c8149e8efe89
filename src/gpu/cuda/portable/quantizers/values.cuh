// SPDX-License-Identifier: Apache-2.0
/// V as e4m3 or f16, channels less their means and times their factors.
#pragma once

#include <cuda_fp8.h>

#include "gpu/cuda/portable/quantizers/tokens.cuh"

namespace fovea::gpu::portable::quantizers {

__device__ inline __half encoded(float x, __half) { return __float2half_rn(x); }
__device__ inline __nv_fp8_e4m3 encoded(float x, __nv_fp8_e4m3) { return __nv_fp8_e4m3(x); }

/// A CTA for each 128 tokens of a head. Tokens that do not count become zeros.
template <class Element, class To>
__global__ void __launch_bounds__(kThreads) encode_values(const __grid_constant__ ChannelParams params) {
  const Side& side = params.side;
  const int head = static_cast<int>(blockIdx.x) % side.heads;
  const Tokens tokens = piece_of(params.batch, false, static_cast<int>(blockIdx.x) / side.heads, kBlockTokens);
  if (tokens.count == 0) return;
  const int chunks = side.head_dim / kChunk, rows = kThreads / chunks;
  const int column = static_cast<int>(threadIdx.x) % chunks * kChunk, first = static_cast<int>(threadIdx.x) / chunks;
  if (first >= rows) return;
  float mean[kChunk], factor[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const Numbers& numbers = side.mean;
    const std::int64_t channel = (std::int64_t{tokens.sequence} * side.heads + head) * side.head_dim + column + i;
    mean[i] =
        numbers.data != nullptr ? numbers.data[tokens.sequence * numbers.strides.batch + head * numbers.strides.head + column + i] : 0;
    factor[i] = side.factors != nullptr ? side.factors[channel] : 1;
  }
  const int end = min(tokens.token + kBlockTokens, tokens.count);
#pragma unroll 4
  for (int token = tokens.token + first; token < end; token += rows) {
    Pack<To, kChunk> codes;
    if (tokens.counts(token)) {
      const Pack<Element, kChunk> chunk = load_chunk(row_of<Element>(side.from, tokens, token, head) + column, side.from.aligned);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const float x = (to_f32(chunk.element[i]) - mean[i]) * factor[i];
        codes.element[i] = encoded(isnan(factor[i]) ? 0 : x, To{});
      }
    } else {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) codes.element[i] = encoded(0, To{});
    }
    store_chunk(row_of<To>(side.to, tokens, token, head) + column, codes, side.to.aligned);
  }
}

}  // namespace fovea::gpu::portable::quantizers
