// SPDX-License-Identifier: Apache-2.0
/// Keys by TMA, eight keys a box: pages of a multiple of eight. Each CTA of a cluster copies some of the keys to all.
#pragma once

#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class TmaLoader {
 public:
  std::uint32_t parity = 0;  // of the halves' `empty`, flipped: it changes with each fill

  static constexpr int kArrivals = 1;  // at a half's `full`: one lane expects the bytes

  __device__ TmaLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {
    group = (Config::kCluster > 1 ? cluster_rank() * kShare : 0) + lane;
  }

  /// Loads pairs [begin, end). Warp w loads half w (tile w / 2, columns [0, 256) or the rest) once its last reader has released it. The
  /// block table is read one pair ahead. Calls `before` ahead of a CTA's first pair; later ahead of the second pair of a work tile, because
  /// stages of keys are free sooner than the queries' stage. No copy is issued while one that is needed sooner is in flight: the first odd
  /// tile waits for the even tile, and a prefetch waits for the boxes before it.
  template <class Before>
  __device__ __forceinline__ void operator()(const Sequence& sequence, int begin, int end, bool first, Before&& before) {
    const int buffer = warp / 2, half = warp % 2;
    const int slices = half == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    const std::uint32_t full = shared_address(&storage.full[warp]), empty = shared_address(&storage.empty[warp]);
    const std::uint32_t to = shared_address(storage.k[buffer]) + group * kKeyGroup + half * kHalfSlices * kGroupBytes;
    Keys next = find_keys(sequence, begin * kPair + buffer * kKeyTile);
    for (int pair = begin;; ++pair) {
      if (pair == (first ? begin : begin + 1)) before();
      if (pair == end) return;
      const Keys keys = next;
      next = find_keys(sequence, (pair + 1) * kPair + buffer * kKeyTile);
      if (Config::kCluster > 1 && pair > begin) {  // the boxes before them have arrived
        barrier_wait(full, parity ^ 1);
        if (lane < kShare) tma_prefetch(map(), box_of(keys));
      }
      if (first && pair == begin && buffer == 1) barrier_wait(shared_address(&storage.full[kEvenRight]), 0);
      barrier_wait(empty, parity ^ 1);
      parity ^= 1;
      if (lane == 0) barrier_arrive_expect_tx(full, kKeyTile * 128 * slices);
      __syncwarp();
      if (lane < kShare) copy_keys(to, keys, full);
    }
  }

 private:
  /// The first odd tile waits for this half. The left one may be filled again before the odd tile has been multiplied.
  static constexpr int kEvenRight = 1;
  static constexpr int kShare = kGroups / Config::kCluster;  // groups of eight keys that this CTA copies

  /// Place of eight keys in the cache. TMA fills in zeros for a block past the end.
  struct Keys {
    int block, row;
  };

  __device__ Keys find_keys(const Sequence& sequence, int first_key) const {
    const int key = first_key + group * kBoxRows;
    if (lane >= kShare || key >= sequence.keys.end || key + kBoxRows <= sequence.keys.begin) return {params.main.blocks, 0};
    const int entry = params.main.page.quotient(key);
    const int block = params.block_table[sequence.index * params.table_stride + entry];
    return {block < 0 ? params.main.blocks : block, key - entry * params.main.page.divisor};
  }

  __device__ BoxStart box_of(Keys keys) const { return {0, keys.row, warp % 2 * kHalfSlices, static_cast<int>(blockIdx.y), keys.block}; }
  __device__ const CUtensorMap* map() const { return warp % 2 == 0 ? &params.left : &params.right; }

  __device__ void copy_keys(std::uint32_t to, Keys keys, std::uint32_t full) const {
    if constexpr (Config::kCluster > 1) {
      tma_load_multicast(to, map(), box_of(keys), full, (1 << Config::kCluster) - 1);
    } else {
      tma_load(to, map(), box_of(keys), full);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  int group;  // of eight keys, copied by this lane
};

}  // namespace fovea::gpu::sm90::latent
