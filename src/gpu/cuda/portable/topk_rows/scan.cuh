// SPDX-License-Identifier: Apache-2.0
/// How a CTA reads a row, or a part of it: through rings in shared memory, one for each warp.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/portable/topk_rows/bulk_copy.cuh"
#include "gpu/cuda/portable/topk_rows/candidates.cuh"

namespace fovea::gpu::portable::topk {

inline constexpr int kPacksOfTile = packs_of_tile(kTarget);
inline constexpr bool kBulk = kTarget >= 90;  ///< bulk copies, one for the packs of a warp

/// Columns of a row, or of a part of it. Their places count elements from an address that is aligned to a pack.
template <class T>
struct Span {
  static constexpr unsigned kPack = 16 / sizeof(T);
  const T* base;
  unsigned first, last;
  __device__ unsigned begin() const { return first / kPack * kPack; }
};

/// The ring of a warp. Its packs are the warp's alone, so that nobody else is waited for.
struct Ring {
  uint4* packs;            ///< of the warp's first slot
  std::uint64_t* arrived;  ///< mbarriers, a slot each
  int slots;
  unsigned phases = 0;  ///< a bit for each slot

  __device__ Ring(uint4* memory, std::uint64_t* barriers, int slots)
      : packs(memory + threadIdx.x / 32 * kPacksOfTile * 32), arrived(barriers + threadIdx.x / 32 * kMostSlots), slots(slots) {
    if constexpr (kBulk) {
      if (lane_of_warp() == 0) {
        for (int i = 0; i < slots; ++i) barrier_init(shared_address(arrived + i));
        fence_barrier_init();
      }
      __syncwarp();
    }
  }
  __device__ uint4* slot(int i) const { return packs + i * kPacksOfTile * kThreads; }

  /// Waits for the oldest tile, which is in slot `i`.
  __device__ __forceinline__ void wait(int i) {
    static_assert(kMostSlots == 4);
    if constexpr (kBulk) {
      barrier_wait(shared_address(arrived + i), phases >> i & 1);
      phases ^= 1u << i;
    } else {
      if (slots == 4) return copy_async_wait<3>();
      copy_async_wait(slots - 1);
    }
  }
};

/// The elements of a thread: packs of 16 bytes, 32 of them side by side.
template <class T>
struct Tile {
  static constexpr unsigned kPack = 16 / sizeof(T), kElements = kPack * kPacksOfTile, kOfWarp = 32 * kElements;
  static constexpr unsigned kPlaces = kWarps * kOfWarp;
  uint4* packs;  ///< the thread's first

  __device__ Tile(const Ring& ring, int slot) : packs(ring.slot(slot) + lane_of_warp()) {}

  /// The warp's first place of a span.
  __device__ static unsigned begin(const Span<T>& span) { return span.begin() + threadIdx.x / 32 * kOfWarp; }
  /// `begin` is the warp's.
  __device__ static unsigned place(unsigned begin, unsigned i) { return begin + (i / kPack * 32 + lane_of_warp()) * kPack + i % kPack; }
  __device__ static bool within(const Span<T>& span, unsigned begin) { return begin >= span.first && begin + kOfWarp <= span.last; }

  /// Copies the warp's packs from `begin` on. Elements outside of the span are not read.
  __device__ __forceinline__ void copy(const Span<T>& span, unsigned begin, [[maybe_unused]] std::uint64_t* arrived) const {
    if constexpr (kBulk) {
      __syncwarp();  // all have read what was here
      if (within(span, begin)) {
        if (lane_of_warp() == 0) copy_packs(span, begin, begin + kOfWarp, begin, arrived);
      } else if (begin < span.last) {
        copy_ends(span, begin, arrived);
      }
    } else {
      if (within(span, begin)) {
        const T* from = span.base + place(begin, 0);
#pragma unroll
        for (int i = 0; i < kPacksOfTile; ++i) copy_async(shared_address(packs + i * 32), from + i * 32 * kPack);
      } else if (begin < span.last) {
#pragma unroll 1
        for (int i = 0; i < kPacksOfTile; ++i) copy_edge(i, span, place(begin, i * kPack));
      }
      copy_async_commit();
    }
  }
  /// Lane 0 copies whole packs to their places after `begin`.
  __device__ void copy_packs(const Span<T>& span, unsigned first, unsigned last, unsigned begin, std::uint64_t* arrived) const {
    const auto bytes = static_cast<unsigned>((last - first) * sizeof(T));
    bulk_copy(shared_address(packs) + (first - begin) * sizeof(T), span.base + first, bytes, shared_address(arrived));
  }
  /// Packs at the ends of a span, which it does not have as a whole, are copied by elements.
  __device__ __forceinline__ void copy_ends(const Span<T>& span, unsigned begin, std::uint64_t* arrived) const {
    const unsigned end = begin + kOfWarp, lane = lane_of_warp();
    T* to = reinterpret_cast<T*>(packs - lane);
    for (const unsigned pack : {span.first / kPack * kPack, span.last / kPack * kPack}) {
      const unsigned at = pack + lane;
      if (lane < kPack && at >= begin && at < end && at >= span.first && at < span.last) to[at - begin] = span.base[at];
    }
    fence_for_bulk_copies();  // before a later copy to this slot
    __syncwarp();
    const unsigned first = max((span.first + kPack - 1) / kPack * kPack, begin), last = min(span.last / kPack * kPack, end);
    if (lane == 0) copy_packs(span, first, max(first, last), begin, arrived);
  }
  __device__ void copy_edge(int i, const Span<T>& span, unsigned at) const {
    if (at >= span.first && at + kPack <= span.last) return copy_async(shared_address(packs + i * 32), span.base + at);
    T* to = reinterpret_cast<T*>(packs + i * 32);
#pragma unroll 1
    for (int e = 0; e < kPack; ++e) {
      if (at + e >= span.first && at + e < span.last) to[e] = span.base[at + e];
    }
  }

  __device__ float value(unsigned i) const { return to_f32(reinterpret_cast<const T*>(packs + i / kPack * 32)[i % kPack]); }

  /// A bit for each element of this order at least. NaN has one alone.
  __device__ __forceinline__ unsigned of_order(unsigned least) const {
    const float value = value_of(least);
    unsigned bits = 0;
#pragma unroll
    for (int p = 0; p < kPacksOfTile; ++p) {
      const uint4 words = packs[p * 32];
      const T* elements = reinterpret_cast<const T*>(&words);
#pragma unroll
      for (int e = 0; e < kPack; ++e) {
        if (to_f32(elements[e]) >= value) bits |= 1u << (p * kPack + e);
      }
    }
    return least <= kNanOrder ? (1u << (kElements - 1) << 1) - 1 : bits;
  }

  /// A bit for each element that the span has.
  __device__ static __forceinline__ unsigned inside(const Span<T>& span, unsigned begin) {
    if (within(span, begin)) return ~0u;
    unsigned bits = 0;
#pragma unroll 1
    for (unsigned i = 0; i < kElements; ++i) {
      const unsigned at = place(begin, i);
      if (at >= span.first && at < span.last) bits |= 1u << i;
    }
    return bits;
  }
};

/// Copies the first tiles of a span.
template <class T>
__device__ inline void begin_copies(const Ring& ring, const Span<T>& span) {
#pragma unroll 1
  for (int slot = 0; slot < ring.slots; ++slot) {
    Tile<T>(ring, slot).copy(span, Tile<T>::begin(span) + slot * Tile<T>::kPlaces, ring.arrived + slot);
  }
}

/// Takes from all tiles of a span, whose first copies have begun. Warps do not wait for each other before there is no room.
template <class T>
__device__ __forceinline__ void scan(Shared& shared, Ring& ring, const Span<T>& span, Key threshold, unsigned k) {
  int slot = 0;
  unsigned begin = Tile<T>::begin(span), pending = 0;
  bool asked = false;
  while (true) {
    if (begin < span.last) {
      const Tile<T> tile(ring, slot);
      if (!asked) {
        ring.wait(slot);
        pending = Tile<T>::inside(span, begin);
      }
      // Where all places come after that of the threshold, equal values are not among the best.
      pending &= tile.of_order(order_of_key(threshold) + (begin > place_of(threshold) ? 1 : 0));
      asked = !append(shared, pending, [&](unsigned i) { return key_of(tile.value(i), Tile<T>::place(begin, i)); });
      if (!asked) {
        tile.copy(span, begin + ring.slots * Tile<T>::kPlaces, ring.arrived + slot);
        slot = slot + 1 == ring.slots ? 0 : slot + 1;
        begin += Tile<T>::kPlaces;
        continue;
      }
    }
    if (!meet(shared, k)) break;
    threshold = shared.threshold;
  }
}

/// A pack of each thread at even distances, for the guess.
template <class T>
__device__ inline uint4 load_sample(const Span<T>& span) {
  constexpr unsigned kPack = Span<T>::kPack;
  const unsigned begin = (span.first + kPack - 1) / kPack * kPack, packs = (span.last - begin) / kPack;
  const unsigned at = begin + static_cast<unsigned>(std::uint64_t{threadIdx.x} * packs / kThreads) * kPack;
  return __ldg(reinterpret_cast<const uint4*>(span.base + at));
}

/// A threshold that some more than k columns of a random row reach. Six barriers.
template <class T>
__device__ inline Key guess_threshold(Shared& shared, const Span<T>& span, const uint4& sample, unsigned k) {
  constexpr int kPack = Span<T>::kPack;
  unsigned below[kPack];  // how far the order is below the highest number
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    below[e] = ~order_of(to_f32(reinterpret_cast<const T*>(&sample)[e]));
    count_in(shared, below[e] >> 21);
  }
  const float expected = static_cast<float>(k) * (kThreads * kPack) / static_cast<float>(span.last - span.first);
  const Bin bin = find_bin(shared, static_cast<unsigned>(expected + 3 * sqrtf(expected) + 3));
#pragma unroll
  for (int e = 0; e < kPack; ++e) {
    if (below[e] >> 21 == bin.index) count_in(shared, below[e] >> 10 & (kBins - 1));
  }
  const unsigned lowest = ~(bin.index << 21 | find_bin(shared, bin.need).index << 10 | 1023);  // a 2^22th of all floats is near enough
  return max(static_cast<Key>(lowest) << 32, kNoThreshold);                                    // equal values differ by places alone
}

}  // namespace fovea::gpu::portable::topk
