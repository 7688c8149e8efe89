// SPDX-License-Identifier: Apache-2.0
/// The candidates of a CTA, and how it cuts them to the k best.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/topk_rows/params.hpp"

namespace fovea::gpu::portable::topk {

inline constexpr int kWarps = kThreads / 32;

struct Shared {
  Key keys[kCapacity];
  unsigned bins[kBins];
  unsigned warp_sums[kWarps];
  Key threshold;     ///< what is below it is not among the best
  unsigned largest;  ///< order
  Key width;         ///< keys from the threshold on that the k-th best is among; 0: the threshold itself is right
  unsigned count;    ///< of candidates, with those that had no room
  unsigned need;     ///< of the best, those among `width` keys
  bool is_cut;       ///< k candidates reach the threshold
};

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

/// The sum over the threads before this one; `total` gets that of all. Two barriers.
__device__ inline unsigned sum_before(Shared& shared, unsigned own, unsigned& total) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const auto through = static_cast<unsigned>(Warp::inclusive_sum(static_cast<int>(own)));
  if (lane_of_warp() == 31) shared.warp_sums[warp] = through;
  __syncthreads();
  unsigned before = 0;
  total = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    const unsigned sum = shared.warp_sums[i];
    if (i < warp) before += sum;
    total += sum;
  }
  __syncthreads();
  return before + through - own;
}

/// Finds the largest order of the first `entries` keys.
__device__ inline void find_largest(Shared& shared, int entries) {
  if (threadIdx.x == 0) shared.largest = 0;
  __syncthreads();
  unsigned own = 0;
  for (int i = threadIdx.x; i < entries; i += kThreads) own = max(own, static_cast<unsigned>(shared.keys[i] >> 32));
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) own = max(own, __shfl_xor_sync(~0u, own, distance));
  if (lane_of_warp() == 0) atomicMax(&shared.largest, own);
  __syncthreads();
}

/// Narrows [threshold, threshold + width) to the bin of the histogram that has the k-th best key.
__device__ inline void narrow(Shared& shared, int entries) {
  constexpr int kBinsOfThread = kBins / kThreads;
  const Key low = shared.threshold, width = shared.width;
  const int shift = max(64 - __clzll(static_cast<long long>(width - 1)) - 11, 0);  // width - 1 < 2^11 << shift
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < entries; i += kThreads) {
    const Key key = shared.keys[i];
    if (key >= low && key - low < width) atomicAdd(&shared.bins[(key - low) >> shift], 1u);
  }
  __syncthreads();
  unsigned counts[kBinsOfThread], own = 0, total = 0;  // the highest bins belong to the first threads
  const int top = kBins - 1 - static_cast<int>(threadIdx.x) * kBinsOfThread;
#pragma unroll
  for (int i = 0; i < kBinsOfThread; ++i) own += counts[i] = shared.bins[top - i];
  const unsigned need = shared.need;
  unsigned before = sum_before(shared, own, total);
  if (before < need && need <= before + own) {
#pragma unroll
    for (int i = 0; i < kBinsOfThread; ++i) {
      if (before < need && need <= before + counts[i]) {
        const bool whole = need == before + counts[i];  // with one key a bin it always is
        shared.threshold = low + (static_cast<Key>(top - i) << shift);
        shared.width = whole ? 0 : Key{1} << shift;
        shared.need = need - before;
        break;
      }
      before += counts[i];
    }
  }
  __syncthreads();
}

/// Keeps the keys from the threshold on. Each thread reads all of its own before any is written.
__device__ inline void drop_below_threshold(Shared& shared, int entries) {
  constexpr int kOwn = kCapacity / kThreads;
  const Key threshold = shared.threshold;
  Key own[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    own[i] = at < entries ? shared.keys[at] : 0;
  }
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool kept = own[i] >= threshold;
    const unsigned mask = __ballot_sync(~0u, kept);
    unsigned base = 0;
    if (lane_of_warp() == 0 && mask != 0) base = atomicAdd(&shared.count, static_cast<unsigned>(__popc(mask)));
    base = __shfl_sync(~0u, base, 0);
    if (kept) shared.keys[base + __popc(mask & ((1u << lane_of_warp()) - 1))] = own[i];
  }
  __syncthreads();
}

/// Cuts more than k candidates to the k best. No two keys are equal, so these are the same whatever the order of the candidates.
__device__ inline void cut(Shared& shared, int k) {
  const int entries = min(static_cast<int>(shared.count), kCapacity);
  find_largest(shared, entries);
  if (threadIdx.x == 0) {
    shared.width = (static_cast<Key>(shared.largest) << 32 | ~0u) - shared.threshold + 1;
    shared.need = static_cast<unsigned>(k);
    shared.is_cut = true;
  }
  __syncthreads();
  while (shared.width != 0) narrow(shared, entries);
  drop_below_threshold(shared, entries);
}

/// Takes the pending elements of each thread, a bit for each. With more than there is room for, the best are kept first, which raises the
/// threshold, and the others are asked again. `key(i)` is element i's key. One that is below the threshold leaves a hole behind, which the
/// next cut drops: there are k others then.
template <class KeyOf>
__device__ __forceinline__ void take(Shared& shared, int k, unsigned pending, const KeyOf& key) {
  while (true) {
    if (__any_sync(~0u, pending != 0)) {
      const int own = __popc(pending), through = Warp::inclusive_sum(own);
      unsigned base = 0;
      if (lane_of_warp() == 31) base = atomicAdd(&shared.count, static_cast<unsigned>(through));
      int at = static_cast<int>(__shfl_sync(~0u, base, 31)) + through - own;
      const Key threshold = shared.threshold;
      for (; pending != 0 && at < kCapacity; pending &= pending - 1, ++at) {
        const Key next = key(__ffs(pending) - 1);
        shared.keys[at] = next >= threshold ? next : 0;
      }
    }
    if (!__syncthreads_or(pending != 0)) return;
    cut(shared, k);
  }
}

}  // namespace fovea::gpu::portable::topk
