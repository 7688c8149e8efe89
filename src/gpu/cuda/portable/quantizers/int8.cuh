// SPDX-License-Identifier: Apache-2.0
/// Quantisation of q and k to int8. A CTA keeps 128 tokens of a head in registers from the largest magnitudes to the
/// quantised values.
#pragma once

#include "gpu/cuda/portable/quantizers/channels.cuh"

namespace fovea::gpu::portable::quantizers {

/// Scales of 128 tokens.
struct Int8Shared {
  static constexpr int kGroups = 64;  ///< at most
  unsigned largest[kGroups];          ///< magnitudes
  float factor[kGroups];              ///< NaN where a group is not finite
  alignas(4) std::uint8_t group[kBlockTokens];
};

/// `kAligned`: every chunk is, in both tensors.
template <class Element, int kHeadDim, bool kAligned, bool kIsQuery>
class Int8Quantizer {
 public:
  __device__ __forceinline__ Int8Quantizer(const Params& params_, const Place& place_)
      : params(params_), side(kIsQuery ? params_.q : params_.k), place(place_), tokens(place_.tokens) {}

  __device__ __forceinline__ void operator()(Int8Shared& shared) {
    const int thread = static_cast<int>(threadIdx.x);
    load();
    if (thread < Int8Shared::kGroups) shared.largest[thread] = __float_as_uint(kSmallest);
    if (thread < kBlockTokens / 4) {
      reinterpret_cast<unsigned*>(shared.group)[thread] = reinterpret_cast<const unsigned*>(groups().of)[thread];
    }
    if (thread == 0 && params.k.arrivals != nullptr && (!kIsQuery || shifts())) wait_for_channels(params.k, tokens.sequence, kv_head());
    __syncthreads();
    look(shared);
    forget();
    __syncthreads();
    if (thread < Int8Shared::kGroups) finish_group(thread, shared);
    __syncthreads();
#pragma unroll
    for (int c = 0; c < kChunks; ++c) encode(c, shared);
    if (thread < Int8Shared::kGroups) store_scale(thread, shared);  // no other item waits for it
    if (kIsQuery && shifts()) write_shifts();
  }

 private:
  static constexpr int kThreads = threads_for(kHeadDim), kLanes = kHeadDim == 96 ? 4 : kHeadDim == 256 ? 16 : 8;  // of a row
  static constexpr int kChunks = kHeadDim / kChunk / kLanes, kRows = kBlockTokens * kLanes / kThreads;            // of a thread
  static_assert(kLanes * kChunks * kChunk == kHeadDim && kRows * kThreads == kBlockTokens * kLanes);

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ int column(int c) { return (c * kLanes + lane()) * kChunk; }
  static constexpr int kRowsApart = kThreads / kLanes;
  static __device__ int row(int i) { return i * kRowsApart + static_cast<int>(threadIdx.x) / kLanes; }  // of the place's
  __device__ int token(int i) const { return tokens.token + row(i); }
  __device__ int kv_head() const { return kIsQuery ? place.head / params.order.q_per_column : place.head; }
  __device__ bool shifts() const { return params.lse_shift.data != nullptr; }
  __device__ const GroupTable& groups() const { return kIsQuery ? params.q_groups : params.k_groups; }

  /// Issues the loads of all rows before their first use.
  __device__ __forceinline__ void load() {
    const std::byte* from = row_of(side.from, place, row(0), sizeof(Element)) + column(0) * sizeof(Element);
    const std::int64_t step = kRowsApart * side.from.strides.row * static_cast<std::int64_t>(sizeof(Element));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool counts = tokens.counts(token(i));
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        kept[i][c] = {};
        if (counts) kept[i][c] = load_chunk<Element, kAligned, true>(from + i * step + (column(c) - column(0)) * sizeof(Element));
      }
    }
  }
  /// Means of the keys of this head, or of those that a query head reads.
  __device__ __forceinline__ void load_means(int c, float (&mean)[kChunk]) const {
    const std::int64_t channels = (std::int64_t{tokens.sequence} * params.kv_heads + kv_head()) * kHeadDim;
    load_numbers(mean, params.k.means, channels + column(c), 0);
  }

  /// The largest magnitude of a thread's part of a row, as an integer: infinity is above all numbers, and NaN above infinity.
  __device__ __forceinline__ static unsigned largest_of(const Chunk<Element>& chunk) {
    using Order = PairOrder<Element>;
    unsigned most = chunk.word[0] & 0x7fff7fffu;  // magnitudes of 16-bit elements are exact in pairs
#pragma unroll
    for (int j = 1; j < kChunk / 2; ++j) most = Order::greater(most, chunk.word[j] & 0x7fff7fffu);
    return max(magnitude(Order::low(most)), magnitude(Order::high(most)));
  }
  __device__ __forceinline__ static unsigned largest_of(const Chunk<Element>& chunk, const float (&mean)[kChunk]) {
    unsigned most = 0;
#pragma unroll
    for (int j = 0; j < kChunk; ++j) most = max(most, magnitude(chunk[j] - mean[j]));
    return most;
  }
  static __device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }

  __device__ __forceinline__ void look(Int8Shared& shared) const {
    unsigned most[kRows] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float mean[kChunk];
      if constexpr (!kIsQuery) load_means(c, mean);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if constexpr (kIsQuery)
          most[i] = max(most[i], largest_of(kept[i][c]));
        else
          most[i] = max(most[i], largest_of(kept[i][c], mean));
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) most[i] = max(most[i], __shfl_xor_sync(~0u, most[i], distance));
      if (lane() == 0 && tokens.counts(token(i))) atomicMax(&shared.largest[shared.group[row(i)]], most[i]);
    }
  }

  /// f32 values are recomputed instead of kept: they would take twice the registers of the elements.
  __device__ __forceinline__ void forget() {
#pragma unroll
    for (int i = 0; i < kRows * kChunks * kChunk / 2; ++i) {
      asm volatile("" : "+r"(kept[i / (kChunks * kChunk / 2)][i / (kChunk / 2) % kChunks].word[i % (kChunk / 2)]));
    }
  }

  __device__ __forceinline__ void finish_group(int of, Int8Shared& shared) const {
    const float amax = __uint_as_float(shared.largest[of]);
    shared.factor[of] = is_finite(amax) ? 127.0f / amax : __int_as_float(0x7fffffff);
  }
  __device__ __forceinline__ void store_scale(int of, const Int8Shared& shared) const {
    const GroupTable& table = groups();
    const float amax = __uint_as_float(shared.largest[of]);
    const int block = of / table.per_block;
    if (block >= table.blocks || tokens.token + block * table.block_tokens >= tokens.count) return;
    const bool ragged = params.batch.cu_seqlens_k != nullptr;
    const std::int64_t before = ragged ? Int8Groups::first_block(tokens.first, tokens.sequence, table.block_tokens) : 0;
    const std::int64_t group = (before + tokens.token / table.block_tokens) * table.per_block + of;
    const detail::RowStrides& strides = side.scale.strides;
    side.scale.data[tokens.batch * strides.batch + place.head * strides.head + group * strides.row] =
        is_finite(amax) ? amax / 127.0f : __int_as_float(0x7fffffff);
  }

  __device__ __forceinline__ void encode(int c, const Int8Shared& shared) const {
    float mean[kChunk];
    if constexpr (!kIsQuery) load_means(c, mean);
    std::byte* to = row_of(side.to, place, row(0), 1) + column(c);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float factor = shared.factor[shared.group[row(i)]];
      const auto code = [&](int j) { return code_of(__fmul_rn(kIsQuery ? kept[i][c][j] : kept[i][c][j] - mean[j], factor)); };
      unsigned word[2];
#pragma unroll
      for (int w = 0; w < 2; ++w) {
        const unsigned low = __byte_perm(code(4 * w), code(4 * w + 1), 0x0040),
                       high = __byte_perm(code(4 * w + 2), code(4 * w + 3), 0x0040);
        word[w] = isnan(factor) ? 0 : __byte_perm(low, high, 0x5410);
      }
      if (tokens.counts(token(i))) store_words<kAligned>(to + i * kRowsApart * side.to.strides.row, word);
    }
  }
  /// The nearest integer, ties to even, in the lowest byte: floats near 1.5 * 2^23 are integers. Conversions have one
  /// result in four clocks.
  static __device__ __forceinline__ unsigned code_of(float x) { return __float_as_uint(__fadd_rn(x, 0x1.8p23f)); }

  /// Stores each query row's product with the mean of its keys.
  __device__ __forceinline__ void write_shifts() {
    float shift[kRows] = {};
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float mean[kChunk];
      load_means(c, mean);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < kChunk; ++j) shift[i] = fmaf(kept[i][c][j], mean[j], shift[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int distance = 1; distance < kLanes; distance *= 2) shift[i] += __shfl_xor_sync(~0u, shift[i], distance);
      if (lane() == 0 && tokens.counts(token(i)))
        params.lse_shift.data[tokens.at(params.lse_shift.strides, token(i), place.head)] = shift[i];
    }
  }

  const Params& params;
  const Side& side;
  const Place& place;
  const Tokens tokens;
  Chunk<Element> kept[kRows][kChunks];
};

}  // namespace fovea::gpu::portable::quantizers
