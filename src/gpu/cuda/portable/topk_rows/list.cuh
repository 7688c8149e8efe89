// SPDX-License-Identifier: Apache-2.0
/// The list of a row from its k best candidates: by ascending columns, or by descending values.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable/topk_rows/candidates.cuh"
#include "op/topk_rows/place.hpp"

namespace fovea::gpu::portable::topk {

/// A map of columns in place of the candidates, which are in registers.
struct alignas(16) Map {
  static constexpr unsigned kWords = 4096;
  unsigned words[kWords];        ///< a bit for each column
  std::uint16_t before[kWords];  ///< columns of the list that precede a word's
  unsigned columns[kMostK];      ///< of the list
};
static_assert(sizeof(Map) <= sizeof(Shared::keys));

/// Bitonic: descending.
__device__ inline void sort_keys(Shared& shared, int count) {
  int size = 2;
  while (size < count) size *= 2;
#pragma unroll 1
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) shared.keys[i] = 0;
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
#pragma unroll 1
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const int low = 2 * pair - pair % distance, high = low + distance;
        const Key a = shared.keys[low], b = shared.keys[high];
        const bool descending = (low & run) == 0;
        if ((a < b) == descending) shared.keys[low] = b, shared.keys[high] = a;
      }
    }
  }
  __syncthreads();
}

/// Counts what precedes each word of the map, after `written`. Returns what precedes the next map. Two barriers.
__device__ inline unsigned count_words(Shared& shared, Map& map, unsigned words, unsigned written) {
  const unsigned words_of_thread = (words + kThreads - 1) / kThreads, first = threadIdx.x * words_of_thread;
  const unsigned last = min(first + words_of_thread, words);
  unsigned own = 0;
#pragma unroll 2
  for (unsigned i = first; i < last; ++i) own += __popc(map.words[i]);
  unsigned at = written + sum_before(shared, own);
#pragma unroll 2
  for (unsigned i = first; i < last; ++i) {
    map.before[i] = static_cast<std::uint16_t>(at);
    at += __popc(map.words[i]);
  }
  written += sum_of_all(shared);
  __syncthreads();
  return written;
}

/// Lists the columns of the keys from `threshold` on. `first` is the place of column 0, `columns` has them all.
__device__ inline void sort_columns(Shared& shared, const Held& held, Key threshold, unsigned first, unsigned columns, unsigned count) {
  Map& map = *reinterpret_cast<Map*>(shared.keys);
  unsigned written = 0;
#pragma unroll 1
  for (unsigned begin = 0; written < count; begin += Map::kWords * 32) {
    const unsigned words = min((columns - begin + 31) / 32, Map::kWords), bits = words * 32, from = first + begin;
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < (words + 3) / 4; i += kThreads) reinterpret_cast<uint4*>(map.words)[i] = uint4{};
    __syncthreads();
    held.for_each([&](Key key) {
      const unsigned bit = place_of(key) - from;
      if (key >= threshold && bit < bits) atomicOr(&map.words[bit / 32], 1u << bit % 32);
    });
    __syncthreads();
    written = count_words(shared, map, words, written);
    held.for_each([&](Key key) {
      const unsigned bit = place_of(key) - from;
      if (key < threshold || bit >= bits) return;
      const unsigned below = map.words[bit / 32] & ((1u << bit % 32) - 1);
      map.columns[map.before[bit / 32] + __popc(below)] = begin + bit;
    });
    __syncthreads();
  }
}

__device__ inline detail::Places places_of(const Params& params, unsigned row) {
  detail::Places places{.offset = params.offset == nullptr ? 0 : params.offset[row]};
  if (params.block_table != nullptr) {
    places.blocks = params.block_table + std::int64_t{row / static_cast<unsigned>(params.rows_of_sequence)} * params.table_stride;
    places.max_blocks = params.max_blocks;
    places.page = params.page;
  }
  return places;
}

/// Ends a row: cuts the candidates to k and lists them, or stores those of a part. Columns count from place `first`.
__device__ inline void end_row(Shared& shared, const Params& params, unsigned row, Key* partial, unsigned first, unsigned columns) {
  unsigned count = shared.count;
  const Held held = hold(shared, static_cast<int>(count));
  Key threshold = 1;
  if (count > params.k) {
    threshold = kth_best(shared, held, params.k);
    count = params.k;
  }
  const bool by_key = partial != nullptr || params.sorted;
  if (by_key) keep(shared, held, threshold);
  if (partial != nullptr) {
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < params.k; i += kThreads) partial[i] = i < count ? shared.keys[i] : 0;
    return;
  }
  std::int32_t* list = params.out + row * params.out_stride;
  const detail::Places places = places_of(params, row);
  if (by_key) {
    sort_keys(shared, static_cast<int>(count));
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < count; i += kThreads) list[i] = places.of(place_of(shared.keys[i]) - first);
  } else {
    sort_columns(shared, held, threshold, first, columns, count);
    const Map& map = *reinterpret_cast<const Map*>(shared.keys);
#pragma unroll 1
    for (unsigned i = threadIdx.x; i < count; i += kThreads) list[i] = places.of(map.columns[i]);
  }
#pragma unroll 1
  for (unsigned i = count + threadIdx.x; i < params.k; i += kThreads) list[i] = -1;
}

}  // namespace fovea::gpu::portable::topk
