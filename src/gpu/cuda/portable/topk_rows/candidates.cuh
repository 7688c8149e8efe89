// SPDX-License-Identifier: Apache-2.0
/// The candidates of a CTA, and how it cuts them to the k best.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/target.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/topk_rows/order.cuh"

namespace fovea::gpu::portable::topk {

inline constexpr int kWarps = kThreads / 32;

/// A bin of a histogram. Bins count from the largest keys.
struct Bin {
  unsigned index;
  unsigned need;  ///< of its keys are among the best
  unsigned keys;  ///< that it has
};

struct Shared {
  Key keys[kCapacity];
  alignas(16) unsigned bins[kBins];            ///< zeros between two uses
  std::uint64_t arrived[kWarps * kMostSlots];  ///< mbarriers
  unsigned warp_sums[kWarps];
  Bin bin;
  Key threshold;  ///< what is below it is not among the best
  Key kth;
  unsigned largest;  ///< order
  unsigned count;    ///< of candidates, with those that found no room
  unsigned few;
};

/// All candidates in registers, `entries` of them. Others are 0.
struct Held {
  static constexpr int kCount = kCapacity / kThreads;
  Key keys[kCount];
  int entries;

  template <class Function>
  __device__ __forceinline__ void for_each(const Function& function) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i * kThreads >= entries) break;
      function(keys[i]);
    }
  }
};

__device__ inline int lane_of_warp() { return static_cast<int>(threadIdx.x) % 32; }

__device__ inline unsigned largest_of_warp(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(~0u, x);
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(~0u, x, distance));
  return x;
#endif
}

__device__ inline unsigned sum_of_warp(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, x);
#else
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(~0u, x, distance);
  return x;
#endif
}

/// The sum over the threads before this one. A barrier, and the caller has one before the next sum.
__device__ inline unsigned sum_before(Shared& shared, unsigned own) {
  static_assert(kWarps <= 32);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = lane_of_warp();
  const auto through = static_cast<unsigned>(Warp::inclusive_sum(static_cast<int>(own)));
  if (lane == 31) shared.warp_sums[warp] = through;
  __syncthreads();
  return sum_of_warp(lane < warp ? shared.warp_sums[lane] : 0) + through - own;
}
/// The sum over all threads, after that.
__device__ inline unsigned sum_of_all(const Shared& shared) {
  return sum_of_warp(lane_of_warp() < kWarps ? shared.warp_sums[lane_of_warp()] : 0);
}

/// Counts in a bin of the histogram.
__device__ __forceinline__ void count_in(Shared& shared, unsigned bin) { atomicAdd(&shared.bins[bin], 1u); }

/// The bin that has the `need`-th best. Empties the histogram. Three barriers.
__device__ inline Bin find_bin(Shared& shared, unsigned need) {
  static_assert(kBins == 4 * kThreads);
  __syncthreads();
  uint4& bins = reinterpret_cast<uint4*>(shared.bins)[threadIdx.x];
  const uint4 counts = bins;
  bins = uint4{};
  const unsigned own = counts.x + counts.y + counts.z + counts.w;
  unsigned before = sum_before(shared, own);
  if (before < need && need <= before + own) {
    unsigned index = 4 * threadIdx.x, keys = counts.x;
    const auto pass = [&](unsigned next) {
      if (need <= before + keys) return;
      before += keys;
      keys = next;
      ++index;
    };
    pass(counts.y);
    pass(counts.z);
    pass(counts.w);
    shared.bin = {index, need - before, keys};
  }
  __syncthreads();
  return shared.bin;
}

/// Loads the candidates, and finds their largest order. A barrier.
__device__ inline Held hold(Shared& shared, int entries) {
  Held held;
  held.entries = entries;
  unsigned largest = 0;
#pragma unroll
  for (int i = 0; i < Held::kCount; ++i) {
    held.keys[i] = 0;
    if (i * kThreads >= entries) continue;
    const int at = i * kThreads + static_cast<int>(threadIdx.x);
    if (at < entries) held.keys[i] = shared.keys[at];
    largest = max(largest, order_of_key(held.keys[i]));
  }
  largest = largest_of_warp(largest);
  if (lane_of_warp() == 0) atomicMax(&shared.largest, largest);
  __syncthreads();
  return held;
}

/// The k-th best of more than k candidates. No two are equal, so these are the same whatever their order.
__device__ inline Key kth_best(Shared& shared, const Held& held, unsigned k) {
  Key high = static_cast<Key>(shared.largest) << 32 | ~0u, width = high - shared.threshold + 1;  // keys from high - width + 1 to high
  Bin bin{0, k, 0};
  do {
    const int shift = max(64 - __clzll(static_cast<long long>(width - 1)) - 11, 0);  // width - 1 < 2^11 << shift
    held.for_each([&](Key key) {
      if (high - key < width) count_in(shared, static_cast<unsigned>((high - key) >> shift));
    });
    bin = find_bin(shared, bin.need);
    high -= static_cast<Key>(bin.index) << shift;
    width = Key{1} << shift;
  } while (bin.keys != bin.need && bin.keys > kFew);
  if (bin.keys == bin.need) return high - width + 1;
  Key* const few = &shared.keys[kCapacity - kFew];
  held.for_each([&](Key key) {
    if (high - key < width) few[atomicAdd(&shared.few, 1u)] = key;
  });
  __syncthreads();
  if (threadIdx.x < bin.keys) {
    const Key own = few[threadIdx.x];
    unsigned rank = 1;
#pragma unroll 1
    for (unsigned i = 0; i < bin.keys; ++i) rank += few[i] > own ? 1 : 0;
    if (rank == bin.need) shared.kth = own;
  }
  __syncthreads();
  if (threadIdx.x == 0) shared.few = 0;
  return shared.kth;
}

/// Leaves the keys from the threshold on among the candidates. Two barriers.
__device__ inline void keep(Shared& shared, const Held& held, Key threshold) {
  unsigned own = 0;
  held.for_each([&](Key key) { own += key >= threshold ? 1 : 0; });
  unsigned at = sum_before(shared, own);
  held.for_each([&](Key key) {
    if (key >= threshold) shared.keys[at++] = key;
  });
  if (threadIdx.x == kThreads - 1) {
    shared.count = at;
    shared.threshold = threshold;
  }
  __syncthreads();
}

/// Takes the pending elements of a warp, a bit for each, while there is room. `key(i)` is element i's key. Bits of others stay; then the
/// warp meets the others. A key may be below the threshold. It takes room alone.
template <class KeyOf>
__device__ __forceinline__ bool append(Shared& shared, unsigned& pending, const KeyOf& key) {
  if (!__any_sync(~0u, pending != 0)) return true;
  const int own = __popc(pending), through = Warp::inclusive_sum(own);
  unsigned base = 0;
  if (lane_of_warp() == 31) base = atomicAdd(&shared.count, static_cast<unsigned>(through));
  int at = static_cast<int>(__shfl_sync(~0u, base, 31)) + through - own;
  for (; pending != 0 && at < kCapacity; pending &= pending - 1, ++at)
    shared.keys[at] = key(static_cast<unsigned>(__ffs(static_cast<int>(pending)) - 1));
  return !__any_sync(~0u, pending != 0);
}

/// Where all warps meet: those that found no room and those that are through. With more candidates than there is room for, the best are
/// kept, which raises the threshold, and the others are asked again. Whether they were cut.
__device__ __forceinline__ bool meet(Shared& shared, unsigned k) {
  __syncthreads();
  if (shared.count <= kCapacity) return false;
  const Held held = hold(shared, kCapacity);
  keep(shared, held, kth_best(shared, held, k));
  return true;
}

}  // namespace fovea::gpu::portable::topk
