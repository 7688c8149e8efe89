// SPDX-License-Identifier: Apache-2.0
/// The list of a row from its k best candidates: by ascending columns, or by descending values.
#pragma once

#include <cstdint>

#include "gpu/cuda/portable/topk_rows/candidates.cuh"
#include "op/topk_rows/place.hpp"

namespace fovea::gpu::portable::topk {

__device__ inline unsigned column_of(Key key) { return ~static_cast<unsigned>(key); }

/// Bitonic: descending.
__device__ inline void sort_keys(Shared& shared, int count) {
  int size = 2;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kThreads) shared.keys[i] = 0;
  for (int run = 2; run <= size; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      __syncthreads();
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

/// Marks columns in a map of bits and lists them in its order, in `shared.bins`. The map lies where no candidate does.
__device__ inline void sort_columns(Shared& shared, const detail::ColumnRange& range, int count) {
  constexpr int kMostWords = 2 * (kCapacity - kMostK);
  static_assert(kMostK <= kBins);
  auto* map = reinterpret_cast<unsigned*>(&shared.keys[kMostK]);
  unsigned written = 0;
  for (std::int64_t begin = range.first; begin < range.last && written < count; begin += std::int64_t{kMostWords} * 32) {
    const int words = static_cast<int>(min((range.last - begin + 31) / 32, std::int64_t{kMostWords}));
    const int words_of_thread = (words + kThreads - 1) / kThreads, first_word = static_cast<int>(threadIdx.x) * words_of_thread;
    const int last_word = min(first_word + words_of_thread, words);
    for (int i = threadIdx.x; i < words; i += kThreads) map[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const std::int64_t bit = column_of(shared.keys[i]) - begin;
      if (bit >= 0 && bit < std::int64_t{words} * 32) atomicOr(&map[bit / 32], 1u << (bit % 32));
    }
    __syncthreads();
    unsigned own = 0, total = 0;
    for (int i = first_word; i < last_word; ++i) own += __popc(map[i]);
    unsigned at = written + sum_before(shared, own, total);
    for (int i = first_word; i < last_word; ++i) {
      for (unsigned bits = map[i]; bits != 0; bits &= bits - 1) {
        shared.bins[at++] = static_cast<unsigned>(begin - range.first) + static_cast<unsigned>(i * 32 + __ffs(static_cast<int>(bits)) - 1);
      }
    }
    written += total;
    __syncthreads();
  }
}

__device__ inline void list_row(Shared& shared, const Params& params, std::int64_t row, const detail::ColumnRange& range) {
  __syncthreads();
  const int count = static_cast<int>(shared.count);
  std::int32_t* list = params.out + row * params.out_stride;
  detail::Places places{.offset = params.offset == nullptr ? 0 : params.offset[row]};
  if (params.block_table != nullptr) {
    places.blocks = params.block_table + row / params.rows_of_sequence * params.table_stride;
    places.max_blocks = params.max_blocks;
    places.page = params.page;
  }
  if (params.sorted) {
    sort_keys(shared, count);
    for (int i = threadIdx.x; i < count; i += kThreads) list[i] = places.of(column_of(shared.keys[i]) - range.first);
  } else {
    sort_columns(shared, range, count);
    for (int i = threadIdx.x; i < count; i += kThreads) list[i] = places.of(shared.bins[i]);
  }
  for (int i = count + static_cast<int>(threadIdx.x); i < static_cast<int>(params.k); i += kThreads) list[i] = -1;
}

}  // namespace fovea::gpu::portable::topk
