// SPDX-License-Identifier: Apache-2.0
/// Quantises q and k to int8: a CTA keeps 128 tokens of a head in registers between the largest magnitudes and the quantised values.
#pragma once

#include "gpu/cuda/portable/quantizers/tokens.cuh"

namespace fovea::gpu::portable::quantizers {

/// Of 128 tokens.
struct Int8Shared {
  static constexpr int kGroups = 64;  ///< at most
  unsigned largest[kGroups];          ///< magnitudes
  std::uint8_t group[kBlockTokens];
};

/// `kAligned`: every chunk is, in both tensors.
template <class Element, int kHeadDim, bool kAligned>
class Int8Quantizer {
 public:
  __device__ Int8Quantizer(const Int8Params& params_, bool is_query_, int piece, int head_)
      : params(params_),
        side(is_query_ ? params_.q : params_.k),
        tokens(piece_of(params_.batch, is_query_, piece, kBlockTokens)),
        is_query(is_query_),
        head(head_) {}

  __device__ __forceinline__ void operator()(Int8Shared& shared) {
    if (tokens.count == 0) return;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < Int8Shared::kGroups) shared.largest[thread] = __float_as_uint(kSmallest);
    if (thread < kBlockTokens) shared.group[thread] = static_cast<std::uint8_t>(group(thread));
#pragma unroll
    for (int i = 0; i < kRows; ++i) load(i);
    load_means();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRows; ++i) look(i, shared.largest[shared.group[row(i)]]);
    __syncthreads();
    if (thread < Int8Shared::kGroups) store_scale(thread, __uint_as_float(shared.largest[thread]));
#pragma unroll
    for (int i = 0; i < kRows; ++i) encode(i, __uint_as_float(shared.largest[shared.group[row(i)]]));
  }

 private:
  static constexpr int kLanes = kHeadDim == 96 ? 4 : 8;                                                 // of a row
  static constexpr int kChunks = kHeadDim / kChunk / kLanes, kRows = kBlockTokens * kLanes / kThreads;  // of a thread
  static_assert(kLanes * kChunks * kChunk == kHeadDim && kRows * kThreads == kBlockTokens * kLanes);

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int column(int c) { return (c * kLanes + lane()) * kChunk; }
  static __device__ int row(int i) { return (i * kThreads + static_cast<int>(threadIdx.x)) / kLanes; }  // of the CTA's
  __device__ int token(int i) const { return tokens.token + row(i); }

  __device__ int per_block() const { return static_cast<int>(is_query ? params.groups.q_per_block() : params.groups.k_per_block()); }
  __device__ int groups() const { return is_query ? per_block() : 2 * per_block(); }
  __device__ int group(int of) const { return static_cast<int>(is_query ? params.groups.q_group(of) : params.groups.k_group(of)); }

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

  /// All rows before one is looked at, so that they are on their way together.
  __device__ __forceinline__ void load(int i) {
    const int at = token(i);
    const bool counts = tokens.counts(at);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (counts) kept[i][c] = load_chunk(row_of<Element>(side.from, tokens, at, head) + column(c), kAligned);
    }
  }

  __device__ __forceinline__ void look(int i, unsigned& largest) const {
    const int at = token(i);
    const bool counts = tokens.counts(at);
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
    atomicMax(&largest, most);
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
    const bool finite = is_finite(amax);
    const float factor = 127.0f / amax;
    auto* to = row_of<std::int8_t>(side.to, tokens, at, head);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      Pack<std::int8_t, kChunk> codes;
#pragma unroll
      for (int j = 0; j < kChunk; ++j) codes.element[j] = code_of(__fmul_rn(value(i, c, j), factor));
      if (!finite) codes = {};
      store_chunk(to + column(c), codes, kAligned);
    }
  }

  /// The nearest integer, ties to even: beside 1.5 * 2^23 a float holds integers. Conversions have one result in four clocks.
  static __device__ __forceinline__ std::int8_t code_of(float x) {
    return static_cast<std::int8_t>(__float_as_int(__fadd_rn(x, 0x1.8p23f)));
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
  __shared__ Int8Shared shared;
  const bool is_query = static_cast<int>(blockIdx.x) < params.q_items;
  const Side& side = is_query ? params.q : params.k;
  const int item = static_cast<int>(blockIdx.x) - (is_query ? 0 : params.q_items), piece = item / side.heads, head = item % side.heads;
  if (side.from.aligned && side.to.aligned) {
    Int8Quantizer<Element, kHeadDim, true>(params, is_query, piece, head)(shared);
  } else {
    Int8Quantizer<Element, kHeadDim, false>(params, is_query, piece, head)(shared);
  }
}

}  // namespace fovea::gpu::portable::quantizers
