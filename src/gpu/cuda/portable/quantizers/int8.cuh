// SPDX-License-Identifier: Apache-2.0
/// Quantises q and k to int8: a CTA keeps 128 tokens of a head in registers between the largest magnitudes and the quantised values.
#pragma once

#include "gpu/cuda/portable/quantizers/tokens.cuh"

namespace fovea::gpu::portable::quantizers {

template <class Element, int kHeadDim>
class Int8Quantizer {
 public:
  static constexpr int kGroups = 64;  // of 128 tokens, at most

  __device__ Int8Quantizer(const Int8Params& params_, bool is_query_, int piece, int head_)
      : params(params_),
        side(is_query_ ? params_.q : params_.k),
        tokens(piece_of(params_.batch, is_query_, piece, kBlockTokens)),
        is_query(is_query_),
        head(head_) {}

  __device__ __forceinline__ void operator()(unsigned (&largest)[kGroups]) {
    if (tokens.count == 0) return;
    if (threadIdx.x < kGroups) largest[threadIdx.x] = __float_as_uint(kSmallest);
    load_means();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows; ++i) load(i, largest);
    __syncthreads();
    if (threadIdx.x < kGroups) store_scale(static_cast<int>(threadIdx.x), __uint_as_float(largest[threadIdx.x]));
#pragma unroll
    for (int i = 0; i < kRows; ++i) encode(i, __uint_as_float(largest[local_group(token(i))]));
  }

 private:
  static constexpr int kLanes = kHeadDim == 96 ? 4 : 8;                                                 // of a row
  static constexpr int kChunks = kHeadDim / kChunk / kLanes, kRows = kBlockTokens * kLanes / kThreads;  // of a thread
  static_assert(kLanes * kChunks * kChunk == kHeadDim && kRows * kThreads == kBlockTokens * kLanes);

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int column(int c) { return (c * kLanes + lane()) * kChunk; }
  __device__ int token(int i) const { return tokens.token + (i * kThreads + static_cast<int>(threadIdx.x)) / kLanes; }

  __device__ int per_block() const { return static_cast<int>(is_query ? params.groups.q_per_block() : params.groups.k_per_block()); }
  __device__ int groups() const { return is_query ? per_block() : 2 * per_block(); }
  __device__ int group(int of) const { return static_cast<int>(is_query ? params.groups.q_group(of) : params.groups.k_group(of)); }
  __device__ int local_group(int of) const { return group(of) - group(tokens.token); }

  /// Of the channels of k, or of the kv head of q.
  __device__ __forceinline__ void load_means() {
    const Numbers& numbers = params.k.mean;
    const int kv_head = is_query ? head / (params.q.heads / params.k.heads) : head;
    const float* from = numbers.data + tokens.sequence * numbers.strides.batch + kv_head * numbers.strides.head;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) mean[c][j] = numbers.data != nullptr ? from[column(c) + j] : 0;
    }
  }
  __device__ __forceinline__ float value(int i, int c, int j) const {
    const float x = to_f32(kept[i][c].element[j]);
    return is_query ? x : x - mean[c][j];
  }

  __device__ __forceinline__ void load(int i, unsigned (&largest)[kGroups]) {
    const int at = token(i);
    const bool counts = tokens.counts(at);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (counts) kept[i][c] = load_chunk(row_of<Element>(side.from, tokens, at, head) + column(c), side.from.aligned);
    }
    // As integers: magnitudes are in order, infinity above all numbers, NaN above infinity.
    unsigned most = 0;
    float shift = 0;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        const float x = value(i, c, j);
        most = max(most, __float_as_uint(fabsf(x)));
        shift = fmaf(x, mean[c][j], shift);
      }
    }
#pragma unroll
    for (int distance = 1; distance < kLanes; distance *= 2) {
      most = max(most, __shfl_xor_sync(~0u, most, distance));
      shift += __shfl_xor_sync(~0u, shift, distance);
    }
    if (!counts || lane() != 0) return;
    atomicMax(&largest[local_group(at)], most);
    if (is_query && params.lse_shift.data != nullptr) params.lse_shift.data[tokens.at(params.lse_shift.strides, at, head)] = shift;
  }

  __device__ __forceinline__ void store_scale(int of, float amax) const {
    const int block_tokens = static_cast<int>(is_query ? Int8Groups::kQBlock : Int8Groups::kKBlock);
    if (of >= groups() || tokens.token + of / per_block() * block_tokens >= tokens.count) return;
    const bool ragged = params.batch.cu_seqlens_k != nullptr;
    const std::int64_t first = ragged ? Int8Groups::first_block(tokens.first, tokens.sequence, block_tokens) * per_block() : 0;
    const detail::RowStrides& strides = side.scale.strides;
    side.scale.data[tokens.batch * strides.batch + head * strides.head + (first + group(tokens.token) + of) * strides.row] =
        is_finite(amax) ? amax / 127.0f : __int_as_float(0x7fffffff);
  }

  __device__ __forceinline__ void encode(int i, float amax) const {
    const int at = token(i);
    if (!tokens.counts(at)) return;
    const float factor = 127.0f / amax;
    const bool finite = is_finite(amax);
    auto* to = row_of<std::int8_t>(side.to, tokens, at, head);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Pack<std::int8_t, kChunk> codes;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) codes.element[j] = static_cast<std::int8_t>(finite ? __float2int_rn(value(i, c, j) * factor) : 0);
      store_chunk(to + column(c), codes, side.to.aligned);
    }
  }

  const Int8Params& params;
  const Side& side;
  const Tokens tokens;
  const bool is_query;
  const int head;
  Pack<Element, kChunk> kept[kRows][kChunks];
  float mean[kChunks][kChunk];
};

/// A CTA for each 128 tokens of a head: those of q first.
template <class Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads) quantize_int8(const __grid_constant__ Int8Params params) {
  using Quantizer = Int8Quantizer<Element, kHeadDim>;
  __shared__ unsigned largest[Quantizer::kGroups];
  const bool is_query = static_cast<int>(blockIdx.x) < params.q_items;
  const int item = static_cast<int>(blockIdx.x) - (is_query ? 0 : params.q_items), heads = is_query ? params.q.heads : params.k.heads;
  Quantizer(params, is_query, item / heads, item % heads)(largest);
}

}  // namespace fovea::gpu::portable::quantizers
