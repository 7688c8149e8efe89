// SPDX-License-Identifier: Apache-2.0
/// Keys row by row, as they are stored. The four warps share each half of a tile, a quarter of its rows each. A pair's tokens are looked up
/// a pair ahead, and located while consumers compute.
#pragma once

#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class RowLoader {
 public:
  std::uint32_t parity = 0;  // of the halves' `empty`, flipped: it changes with each fill

  /// At a half's `full`: every thread arrives when its copies are complete, and a lane of each warp after it has stored which keys are
  /// present.
  static constexpr int kWarps = Config::kLoadThreads / 32, kArrivals = Config::kLoadThreads + kWarps;

  __device__ RowLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {}

  /// Loads pairs [begin, end) of tiles. `before` is called ahead of a work tile's first keys: consumers need queries first.
  template <class Before>
  __device__ __forceinline__ void operator()(const Sequence& sequence, int begin, int end, bool first, Before&& before) {
    Places places;
    const int wanted = look_up(begin);
    int found = look_up(begin + 1);
    if (first) before();
    find(sequence, begin, wanted, places);
    if (!first) before();
    for (int pair = begin; pair < end; ++pair) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) load_half(sequence, places, pair, i);
      parity ^= 1;
      find(sequence, pair + 1, found, places);
      found = look_up(pair + 2);
    }
  }

 private:
  static constexpr int kRows = kKeyTile / kWarps;                  // of a warp
  static constexpr int kStepRows = 4, kSteps = kRows / kStepRows;  // eight lanes share a row, 16 bytes of a slice each

  /// The rows that this lane copies, of the even tile and of the odd one.
  struct Places {
    std::uint32_t of[2][kSteps];
    std::uint32_t present;  // a bit for each row of the warp: 16 of the even tile, 16 of the odd one
  };

  /// Lanes 0 to 15 look up the warp's rows of the even tile, the others those of the odd one.
  __device__ int own_key(int pair) const { return pair * kPair + lane / kRows * kKeyTile + warp * kRows + lane % kRows; }
  __device__ int look_up(int pair) const { return latent::look_up(params, storage.lists[warp], own_key(pair)); }
  __device__ void find(const Sequence& sequence, int pair, int found, Places& places) const {
    const Token own = locate(params, cache_of(params, sequence, pair, lane / kRows), own_key(pair), found);
    places.present = __ballot_sync(~0u, own.present());
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int source = i / kSteps * kRows + i % kSteps * kStepRows + lane / 8;
      places.of[i / kSteps][i % kSteps] = __shfl_sync(~0u, own.at, source);
    }
  }

  __device__ __forceinline__ void load_half(const Sequence& sequence, const Places& places, int pair, int i) {
    const int buffer = buffer_of(i), half = half_of(i), slot = buffer * 2 + half;
    const int slices = half == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    const std::byte* data = data_of(cache_of(params, sequence, pair, buffer)) + half * kHalfSlices * 128 + lane % 8 * 16;
    const std::uint32_t to = shared_address(storage.k[buffer]) + warp * (kRows / 8) * kKeyGroup + half * kHalfSlices * kGroupBytes;
    barrier_wait(shared_address(&storage.empty[slot]), parity ^ 1);
    if (half == buffer && lane == 0)
      *reinterpret_cast<std::uint16_t*>(&storage.present[buffer][warp * 2]) = static_cast<std::uint16_t>(places.present >> buffer * kRows);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int row = step * kStepRows + lane / 8;
      const bool present = places.of[buffer][step] != Token::kNone;
      const std::byte* from = present ? token_at(params, data, places.of[buffer][step]) : static_cast<const std::byte*>(params.q);
      const std::uint32_t row_at = to + row / 8 * kKeyGroup + row % 8 * 128 + ((lane % 8) ^ (row % 8)) * 16;
#pragma unroll
      for (int slice = 0; slice < slices; ++slice) copy_async(row_at + slice * kGroupBytes, from + (present ? slice * 128 : 0), present);
    }
    const std::uint32_t full = shared_address(&storage.full[slot]);
    copy_async_arrive(full);
    if (lane == 0) barrier_arrive(full);
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
};

}  // namespace fovea::gpu::sm90::latent
