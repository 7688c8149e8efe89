// SPDX-License-Identifier: Apache-2.0
/// What means and scales of channels follow from, by slices of tokens.
#pragma once

#include "gpu/cuda/portable/quantizers/tokens.cuh"

namespace fovea::gpu::portable::quantizers {

inline constexpr int kTogether = 8;  ///< rows on their way to a thread

/// Of a thread: the channels of one chunk over some tokens.
struct ChunkParts {
  ChannelPart part[kChunk];

  __device__ __forceinline__ ChunkParts() {
#pragma unroll
    for (ChannelPart& p : part) p = {0, INFINITY, -INFINITY, 0};
  }
  template <class Element>
  __device__ __forceinline__ void add(const Pack<Element, kChunk>& chunk, float (&sum)[kChunk]) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float x = to_f32(chunk.element[i]);
      sum[i] += x;
      part[i].low = fminf(part[i].low, x);
      part[i].high = fmaxf(part[i].high, x);
      part[i].not_finite = fmaf(x, 0, part[i].not_finite);
    }
  }
};

__device__ inline void join(ChannelPart& part, const ChannelPart& other) {
  part.sum += other.sum;
  part.low = fminf(part.low, other.low);
  part.high = fmaxf(part.high, other.high);
  part.not_finite += other.not_finite;
}

/// A CTA for each slice and head.
template <class Element>
__global__ void __launch_bounds__(kThreads) look_at_channels(const __grid_constant__ ChannelParams params) {
  extern __shared__ ChannelPart shared[];  // [group of rows][head_dim]
  const Side& side = params.side;
  const int slice = static_cast<int>(blockIdx.x) / side.heads, head = static_cast<int>(blockIdx.x) % side.heads;
  const Tokens tokens = piece_of(params.batch, false, slice, kSliceTokens);
  if (tokens.count == 0) return;
  const int chunks = side.head_dim / kChunk, groups = kThreads / chunks;
  const int group = static_cast<int>(threadIdx.x) / chunks, column = static_cast<int>(threadIdx.x) % chunks * kChunk;
  const int slice_begin = max(tokens.token, tokens.begin), slice_end = min(tokens.token + kSliceTokens, tokens.end);
  ChunkParts parts;
  for (int begin = slice_begin + group * kSumTokens; group < groups && begin < slice_end; begin += groups * kSumTokens) {
    float sum[kChunk] = {};
    const auto chunk_of = [&](int token) {
      return load_chunk(row_of<Element>(side.from, tokens, token, head) + column, side.from.aligned);
    };
    int token = begin;
    const int end = min(begin + kSumTokens, slice_end);
    for (; token + kTogether <= end; token += kTogether) {
      Pack<Element, kChunk> chunk[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) chunk[i] = chunk_of(token + i);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) parts.add(chunk[i], sum);
    }
    for (; token < end; ++token) parts.add(chunk_of(token), sum);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) parts.part[i].sum += static_cast<double>(sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if (group < groups) shared[group * side.head_dim + column + i] = parts.part[i];
  }
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= side.head_dim) return;
  ChannelPart all = shared[channel];
  for (int g = 1; g < groups; ++g) join(all, shared[g * side.head_dim + channel]);
  side.parts[(std::int64_t{slice} * side.heads + head) * side.head_dim + channel] = all;
}

}  // namespace fovea::gpu::portable::quantizers
