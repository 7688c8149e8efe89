// SPDX-License-Identifier: Apache-2.0
/// A CTA reads a row, or a part of it, once and keeps the k best of what it has read. A second kernel joins the parts of a row.
#pragma once

#include "gpu/cuda/portable/topk_rows/list.cuh"
#include "gpu/cuda/portable/topk_rows/scan.cuh"
#include "op/common/division.hpp"
#include "op/topk_rows/place.hpp"

namespace fovea::gpu::portable::topk {

__device__ inline void begin_candidates(Shared& shared) {
  static_assert(kBins == 4 * kThreads);
  reinterpret_cast<uint4*>(shared.bins)[threadIdx.x] = uint4{};
  if (threadIdx.x == 0) {
    shared.threshold = kNoThreshold;
    shared.largest = shared.count = shared.few = 0;
  }
  __syncthreads();
}

/// Elements from an aligned address to a row's column 0.
__device__ inline unsigned shift_of(const Params& params, unsigned row, unsigned element_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(params.logits) + std::int64_t{row} * params.row_stride * element_bytes;
  return static_cast<unsigned>(address) % 16 / element_bytes;
}

/// A part of a row: whole packs.
template <class T>
__device__ inline Span<T> span_of(const Params& params, unsigned item) {
  constexpr std::int64_t kPack = Span<T>::kPack;
  const unsigned row = params.parts == 1 ? item : item / params.parts, part = item - row * params.parts,
                 shift = shift_of(params, row, sizeof(T));
  const detail::ColumnRange range = detail::columns_of_row(params.first, params.last, row, params.columns);
  std::int64_t first = range.first + shift, last = first + range.count();
  if (params.parts > 1) {
    const std::int64_t step = detail::ceil_div(range.count() + kPack - 1, kPack * params.parts) * kPack;
    const std::int64_t begin = first / kPack * kPack + part * step;
    last = min(last, begin + step);
    first = min(max(first, begin), last);
  }
  const T* base = static_cast<const T*>(params.logits) + std::int64_t{row} * params.row_stride - shift;
  return {base, static_cast<unsigned>(first), static_cast<unsigned>(last)};
}

/// Takes the candidates of a span. A guess that is too high lets too few pass: then all over again.
template <class T>
__device__ inline void take_span(Shared& shared, Ring& ring, const Span<T>& span, unsigned k) {
  const bool guess = span.last - span.first >= kLeastToGuess;
  uint4 sample{};
  if (guess) sample = load_sample(span);
  begin_copies(ring, span);
  begin_candidates(shared);
  Key threshold = guess ? guess_threshold(shared, span, sample, k) : kNoThreshold;
  while (true) {
    if (threadIdx.x == 0) shared.threshold = threshold;
    scan(shared, ring, span, threshold, k);
    if (threshold == kNoThreshold || shared.count >= k) return;
    threshold = kNoThreshold;
    __syncthreads();
    if (threadIdx.x == 0) shared.count = 0;
    begin_copies(ring, span);
    __syncthreads();
  }
}

/// Dynamic shared memory: Shared and the ring.
template <class T>
__global__ void __launch_bounds__(kThreads, ctas_of_multiprocessor(kTarget)) select(const __grid_constant__ Params params) {
  extern __shared__ __align__(16) unsigned char memory[];
  static_assert(sizeof(Shared) % 16 == 0);
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  Ring ring(reinterpret_cast<uint4*>(memory + sizeof(Shared)), shared.arrived, min(params.ring_packs / kPacksOfTile, kMostSlots));
  const Span<T> span = span_of<T>(params, blockIdx.x);
  take_span(shared, ring, span, params.k);
  Key* partial = params.partial == nullptr ? nullptr : params.partial + blockIdx.x * std::int64_t{params.k};
  end_row(shared, params, blockIdx.x / params.parts, partial, span.first, span.last - span.first);
}

/// The parts of a row.
__global__ void __launch_bounds__(kThreads, kTarget >= 80 ? 2 : 1) join(const __grid_constant__ Params params) {
  __shared__ Shared shared;
  constexpr unsigned kElements = 8;
  const unsigned row = blockIdx.x, entries = params.parts * params.k;
  const Key* partial = params.partial + std::int64_t{row} * entries;
  begin_candidates(shared);
  Key threshold = kNoThreshold;
  for (unsigned begin = threadIdx.x; begin - threadIdx.x < entries; begin += kThreads * kElements) {
    const auto reach = [&](unsigned asked) {
#pragma unroll
      for (unsigned i = 0; i < kElements; ++i) {
        const unsigned at = begin + i * kThreads;
        if (at >= entries || partial[at] < threshold) asked &= ~(1u << i);
      }
      return asked;
    };
    unsigned pending = reach((1u << kElements) - 1);
    while (!append(shared, pending, [&](unsigned i) { return partial[begin + i * kThreads]; })) {
      meet(shared, params.k);
      threshold = shared.threshold;
      pending = reach(pending);
    }
  }
  while (meet(shared, params.k)) {
  }
  const detail::ColumnRange range = detail::columns_of_row(params.first, params.last, row, params.columns);
  end_row(shared, params, row, nullptr, static_cast<unsigned>(range.first) + shift_of(params, row, params.element_bytes),
          static_cast<unsigned>(range.count()));
}

}  // namespace fovea::gpu::portable::topk
