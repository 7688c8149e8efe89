// SPDX-License-Identifier: Apache-2.0
/// A CTA reads a row, or a part of it, once and keeps the k best of what it has read. A second kernel joins the parts of a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>
#include <type_traits>

#include "gpu/cuda/portable/topk_rows/candidates.cuh"
#include "gpu/cuda/portable/topk_rows/list.cuh"
#include "op/common/division.hpp"
#include "op/topk_rows/place.hpp"

namespace fovea::gpu::portable::topk {

inline constexpr unsigned kNanOrder = 1;           ///< NaN comes after -inf
inline constexpr Key kNoThreshold = Key{1} << 32;  ///< no key is below it

/// Unsigned numbers in the order of the values, above 0. -0 is 0.
__device__ inline unsigned order_of(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  const unsigned order = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return value != value ? kNanOrder : order;
}
/// The least value of an order or a higher one. NaN above that of inf, which no value reaches.
__device__ inline float value_of(unsigned order) {
  const float value = __uint_as_float(order ^ (order >> 31 != 0 ? 0x80000000u : ~0u));
  return value != value && order >> 31 == 0 ? -INFINITY : value;
}
__device__ inline Key key_of(float value, unsigned column) { return static_cast<Key>(order_of(value)) << 32 | ~column; }

__device__ inline float to_f32(float value) { return value; }
__device__ inline float to_f32(__half value) { return __half2float(value); }
__device__ inline float to_f32(__nv_bfloat16 value) { return __bfloat162float(value); }

/// Columns of a row, or of a part of it, from `first` to before `last`.
template <class T>
struct Span {
  const T* row;
  unsigned first, last, columns;  // `columns` of the whole row
};

/// The elements of a thread: packs of 16 bytes, kThreads of them side by side.
template <class T, bool kAligned>
struct LoadedTile {
  static constexpr int kPack = 16 / sizeof(T), kElements = kElementsOfThread, kLoads = kElements / kPack;
  static constexpr unsigned kColumns = kThreads * kElements;
  union Pack {
    uint4 words;
    T elements[kPack];
    __device__ Pack() : words{} {}
  };
  Pack packs[kLoads];

  __device__ static unsigned column(unsigned begin, int i) { return begin + (i / kPack * kThreads + threadIdx.x) * kPack + i % kPack; }

  /// From column `begin` on, a multiple of a pack. What lies outside of the span is not read, or has no meaning.
  __device__ __forceinline__ void load(const Span<T>& span, unsigned begin) {
    if (kAligned && begin + kColumns <= span.last) {  // straight-line code, whose loads do not wait for each other
      const auto* from = reinterpret_cast<const uint4*>(span.row + begin) + threadIdx.x;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) packs[i].words = __ldg(from + i * kThreads);
      return;
    }
#pragma unroll
    for (int i = 0; i < kLoads; ++i) load_pack(packs[i], span, column(begin, i * kPack));
  }

  __device__ static __forceinline__ void load_pack(Pack& pack, const Span<T>& span, unsigned at) {
    if (kAligned && at + kPack <= span.columns) {
      if (at < span.last) pack.words = __ldg(reinterpret_cast<const uint4*>(span.row + at));
      return;
    }
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      if (at + e >= span.first && at + e < span.last) pack.elements[e] = span.row[at + e];
    }
  }

  /// A bit for each element of this order at least. NaN has one alone.
  __device__ __forceinline__ unsigned of_order(unsigned least) const {
    const float value = value_of(least);
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (to_f32(packs[i / kPack].elements[i % kPack]) >= value) bits |= 1u << i;
    }
    return least <= kNanOrder ? (1u << kElements) - 1 : bits;
  }

  /// A bit for each element that the span has.
  __device__ static __forceinline__ unsigned inside(const Span<T>& span, unsigned begin) {
    unsigned bits = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const unsigned at = column(begin, i);
      if (at >= span.first && at < span.last) bits |= 1u << i;
    }
    return bits;
  }
};

__device__ inline void begin_candidates(Shared& shared) {
  if (threadIdx.x == 0) {
    shared.count = 0;
    shared.threshold = kNoThreshold;
    shared.is_cut = false;
  }
  __syncthreads();
}

/// Takes from all tiles of a span. The next tile is on its way while one is asked.
template <class T, bool kAligned>
__device__ inline void scan(Shared& shared, const Span<T>& span, int k) {
  using Tile = LoadedTile<T, kAligned>;
  Tile tile;
  unsigned begin = span.first / Tile::kPack * Tile::kPack;
  if (begin < span.last) tile.load(span, begin);
  while (begin < span.last) {
    const unsigned order = static_cast<unsigned>(shared.threshold >> 32);
    unsigned pending = tile.of_order(shared.is_cut ? order + 1 : order);  // k lower columns are as good
    if (begin < span.first || begin + Tile::kColumns > span.last) pending &= Tile::inside(span, begin);
    const unsigned next = begin + Tile::kColumns;
    if (next < span.last) tile.load(span, next);
    take(shared, k, pending, [&](int i) {
      const unsigned column = Tile::column(begin, i);
      return key_of(to_f32(span.row[column]), column);
    });
    begin = next;
  }
  __syncthreads();
}

/// A threshold that some more than k columns of a random row reach, from a sample of packs at even distances.
template <class T, bool kAligned>
__device__ inline void guess_threshold(Shared& shared, const Span<T>& span, int k) {
  using Tile = LoadedTile<T, kAligned>;
  const unsigned begin = detail::ceil_div(span.first, unsigned{Tile::kPack}) * Tile::kPack, packs = (span.last - begin) / Tile::kPack;
  constexpr unsigned kPacks = kSample / Tile::kPack;
  for (unsigned i = threadIdx.x; i < kPacks; i += kThreads) {
    const unsigned at = begin + static_cast<unsigned>(std::uint64_t{i} * packs / kPacks) * Tile::kPack;
    typename Tile::Pack pack;
    Tile::load_pack(pack, span, at);
#pragma unroll
    for (int e = 0; e < Tile::kPack; ++e) shared.keys[i * Tile::kPack + e] = key_of(to_f32(pack.elements[e]), at + e);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const float expected = static_cast<float>(k) * kSample / static_cast<float>(span.last - span.first);
    shared.width = ~Key{0} - kNoThreshold;
    shared.need = static_cast<unsigned>(expected + 3 * sqrtf(expected) + 3);
  }
  __syncthreads();
  for (int i = 0; i < 2 && shared.width != 0; ++i) narrow(shared, kSample);  // a 2^22th of all floats is near enough
  if (threadIdx.x == 0) shared.threshold = shared.threshold >> 32 << 32;     // equal values differ by columns alone
  __syncthreads();
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, kCtasOfSm) select(const __grid_constant__ Params params) {
  __shared__ Shared shared;
  using Tile = LoadedTile<T, kAligned>;
  const std::int64_t row = blockIdx.x / params.parts;
  const int part = static_cast<int>(blockIdx.x % params.parts);
  const detail::ColumnRange range = detail::columns_of_row(params.first, params.last, row, params.columns);
  detail::ColumnRange own = range;
  if (params.parts > 1) {  // whole packs
    const std::int64_t packs = detail::ceil_div(range.count() + Tile::kPack - 1, std::int64_t{Tile::kPack} * params.parts);
    const std::int64_t step = packs * Tile::kPack, begin = range.first / Tile::kPack * Tile::kPack + part * step;
    own = {max(begin, range.first), min(begin + step, range.last)};
  }
  const Span<T> span{static_cast<const T*>(params.logits) + row * params.row_stride, static_cast<unsigned>(own.first),
                     static_cast<unsigned>(own.count() > 0 ? own.last : own.first), static_cast<unsigned>(params.columns)};
  begin_candidates(shared);
  const bool guess = span.last - span.first >= kLeastToGuess;
  if (guess) guess_threshold<T, kAligned>(shared, span, params.k);
  scan<T, kAligned>(shared, span, params.k);
  if (guess && shared.count < params.k) {  // too high: all over again
    __syncthreads();
    begin_candidates(shared);
    scan<T, kAligned>(shared, span, params.k);
  }
  if (shared.count > params.k) cut(shared, params.k);
  if (params.parts == 1) return list_row(shared, params, row, range);
  Key* partial = params.partial + blockIdx.x * static_cast<std::int64_t>(params.k);
  for (int i = threadIdx.x; i < params.k; i += kThreads) partial[i] = i < shared.count ? shared.keys[i] : 0;
}

/// The parts of a row.
__global__ void __launch_bounds__(kThreads, kCtasOfSm) join(const __grid_constant__ Params params) {
  __shared__ Shared shared;
  constexpr int kElements = 8;
  const std::int64_t row = blockIdx.x;
  const int entries = params.parts * params.k;
  const Key* partial = params.partial + row * entries;
  begin_candidates(shared);
  for (int begin = 0; begin < entries; begin += kThreads * kElements) {
    const Key threshold = shared.threshold;
    const auto place = [&](int i) { return begin + i * kThreads + static_cast<int>(threadIdx.x); };
    unsigned pending = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (place(i) < entries && partial[place(i)] >= threshold) pending |= 1u << i;
    }
    take(shared, params.k, pending, [&](int i) { return partial[place(i)]; });
  }
  __syncthreads();
  if (shared.count > params.k) cut(shared, params.k);
  list_row(shared, params, row, detail::columns_of_row(params.first, params.last, row, params.columns));
}

}  // namespace fovea::gpu::portable::topk
