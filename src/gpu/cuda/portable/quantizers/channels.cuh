// SPDX-License-Identifier: Apache-2.0
/// Sums and extremes of channels, by slices of tokens. The last slice of a sequence's head turns them into means and scales.
#pragma once

#include "gpu/cuda/portable/quantizers/finish.cuh"

namespace fovea::gpu::portable::quantizers {

inline constexpr int kLoads = 8;  ///< loads of a thread in flight

/// A thread's channels of one chunk, over some tokens. Extremes are keys of PairOrder.
template <class Element, bool kSum, bool kExtremes>
struct ChunkParts {
  using Order = PairOrder<Element>;
  float sum[kChunk] = {};
  unsigned low[kChunk / 2], high[kChunk / 2];

  __device__ __forceinline__ ChunkParts() {
    Element infinity;
    from_f32(INFINITY, infinity);
    const unsigned infinities = Order::word(pair_of(infinity));
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) low[i] = Order::key(infinities), high[i] = Order::key(infinities | 0x80008000u);
  }
  __device__ __forceinline__ void add(const Chunk<Element>& chunk) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      if constexpr (kSum) sum[i] += chunk[i];
    }
#pragma unroll
    for (int i = 0; i < kChunk / 2; ++i) {
      const unsigned key = Order::key(chunk.word[i]);
      if constexpr (kExtremes) low[i] = Order::lesser(low[i], key), high[i] = Order::greater(high[i], key);
    }
  }
};

/// Partial sums of a slice's groups of rows.
template <int kHeadDim>
struct LookShared {
  alignas(16) float sum[kRowsAtOnce][kHeadDim];
  unsigned low[kRowsAtOnce][kHeadDim / 2], high[kRowsAtOnce][kHeadDim / 2];  ///< words of two channels
  bool is_last;
};

template <class Element, int kHeadDim, bool kAligned, bool kSum, bool kExtremes>
__device__ void look_at_slice(const Side& side, const Place& place, LookShared<kHeadDim>& shared) {
  constexpr int kColumns = kHeadDim / kChunk, kPerThread = kSliceTokens / kRowsAtOnce;
  const Tokens& tokens = place.tokens;
  const int group = static_cast<int>(threadIdx.x) / kColumns, column = static_cast<int>(threadIdx.x) % kColumns * kChunk;
  if (group >= kRowsAtOnce) return;
  const int first = tokens.token + group;
  const std::int64_t step = kRowsAtOnce * side.from.strides.row * static_cast<std::int64_t>(sizeof(Element));
  const std::byte* from = row_of(side.from, place, group, sizeof(Element)) + column * sizeof(Element);
  ChunkParts<Element, kSum, kExtremes> parts;
#pragma unroll 1
  for (int i = 0; i < kPerThread; i += kLoads) {
    Chunk<Element> chunk[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (tokens.counts(first + (i + j) * kRowsAtOnce)) chunk[j] = load_chunk<Element, kAligned, false>(from + j * step);
    }
    from += kLoads * step;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (tokens.counts(first + (i + j) * kRowsAtOnce)) parts.add(chunk[j]);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    if constexpr (kSum) shared.sum[group][column + i] = parts.sum[i];
  }
#pragma unroll
  for (int i = 0; i < kChunk / 2; ++i) {
    using Order = PairOrder<Element>;
    if constexpr (kExtremes) {
      shared.low[group][column / 2 + i] = Order::word_of(parts.low[i]);
      shared.high[group][column / 2 + i] = Order::word_of(parts.high[i]);
    }
  }
}

/// The groups of rows in order.
template <class Element, int kHeadDim>
__device__ inline ChannelPart joined(const LookShared<kHeadDim>& shared, int channel, bool sums, bool extremes) {
  ChannelPart all{0, INFINITY, -INFINITY};
#pragma unroll
  for (int g = 0; g < kRowsAtOnce; ++g) {
    if (sums) all.sum += static_cast<double>(shared.sum[g][channel]);
    if (!extremes) continue;
    const auto half = [&](unsigned word) { return channel % 2 == 0 ? PairOrder<Element>::low(word) : PairOrder<Element>::high(word); };
    join_extremes(all, half(shared.low[g][channel / 2]), half(shared.high[g][channel / 2]));
  }
  return all;
}

/// One slice of a head's tokens.
template <class Element, int kHeadDim, bool kAligned>
__device__ __forceinline__ void look_at_channels(const Params& params, const Place& place, LookShared<kHeadDim>& shared) {
  const Side& side = place.item.step == Step::look_at_k ? params.k : params.v;
  const bool sums = side.means != nullptr, extremes = side.factors != nullptr;
  if (!extremes) {
    look_at_slice<Element, kHeadDim, kAligned, true, false>(side, place, shared);
  } else if (!sums) {
    look_at_slice<Element, kHeadDim, kAligned, false, true>(side, place, shared);
  } else {
    look_at_slice<Element, kHeadDim, kAligned, true, true>(side, place, shared);
  }
  __syncthreads();
  const int channel = static_cast<int>(threadIdx.x);
  const auto part_of = [&](int slice) {
    return side.parts + ((std::int64_t{place.first} + slice) * params.order.columns + place.item.column) * kHeadDim + channel;
  };
  if (channel < kHeadDim) *part_of(place.item.piece - place.first) = joined<Element>(shared, channel, sums, extremes);
  const int slices = max((place.tokens.count + kSliceTokens - 1) / kSliceTokens, 1);
  unsigned* arrivals = side.arrivals + std::int64_t{place.tokens.sequence} * side.heads + place.head;
  // The last CTA to arrive sees the stores of the others. One thread's fence after the barrier is enough for all threads.
  __syncthreads();
  if (channel == 0) {
    __threadfence();
    shared.is_last = atomicAdd(arrivals, 1u) + 1 == static_cast<unsigned>(slices);
    __threadfence();
  }
  __syncthreads();
  if (!shared.is_last) return;
  if (channel < kHeadDim) {
    ChannelPart all{0, INFINITY, -INFINITY};
#pragma unroll 8
    for (int slice = 0; slice < slices; ++slice) join(all, load_part(part_of(slice)));
    finish_channel<kHeadDim>(side, place, channel, all);
  }
  __syncthreads();
  if (channel != 0) return;
  __threadfence();
  atomicExch(arrivals, kReady);
}

}  // namespace fovea::gpu::portable::quantizers
