// SPDX-License-Identifier: Apache-2.0
/// Keys one by one, as they lie in the cache, for value warpgroups that decode them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/code_rows.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Where a row is staged: groups of eight rows, each of four pieces of 128 codes and one of the rotary part. Chunks of 16 bytes of odd rows
/// change halves, so that who reads half a piece of eight rows meets every bank once.
struct Staged {
  static constexpr int kPieces = 4, kGroupStride = (kPieces + 1) * kGroupBytes;
  static_assert(kGroups * kGroupStride == kStagingBytes);

  static __device__ std::uint32_t chunk(int row, int piece, int chunk) {
    return row / 8 * kGroupStride + piece * kGroupBytes + row % 8 * 128 + (chunk ^ row % 2 * 4) * 16;
  }
  /// Pieces come and go in two parts, so that one is brought while the other is decoded: of each half of the columns the first two slices
  /// with the rotary part and the scales, then the others.
  static __device__ constexpr int part_of(int piece) { return piece % 2; }
};
static_assert(Staged::part_of(Staged::kPieces) == 0);

template <class Config>
class StagedLoader {
 public:
  static constexpr int kArrivals = Config::kScoreThreads;  // at a tile's `full`: P and the rest of it are there

  __device__ StagedLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to ask for them again takes longer
  }

  /// Pairs [begin, end) of tiles. `after` the first tile, something else.
  template <class After>
  __device__ __forceinline__ void operator()(const Request& request, int begin, int end, After&& after) {
    const int first = begin * 2, last = first + tiles_of(request, begin, end);
    Places places = locate(request, first, look_up(first));
    int found = look_up(first + 1);
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      bring(request, tile, places);
      if (tile == first) after();
      places = locate(request, tile + 1, found);  // while these are on their way, and decoded
      found = look_up(tile + 2);
    }
  }

  /// The tiles of a job; half a pair that is of no use is left out.
  static __device__ int tiles_of(const Request& request, int begin, int end) {
    return max(min(2 * end, (request.keys.end + kKeyTile - 1) / kKeyTile) - 2 * begin, 1);
  }

  /// Waits until the last tile in this buffer has been read. When the last codes of all have been, every tile but two has been multiplied:
  /// only then does a parity tell the last use of a buffer from the one before it.
  __device__ void await_empty(int buffer) const {
    barrier_wait(shared_address(&storage.staged_free[1]), (tiles & 1) ^ 1);
    const std::uint32_t uses = (tiles + 1 - buffer) / 2;
    barrier_wait(shared_address(&storage.empty[buffer]), (uses & 1) ^ 1);
  }

 private:
  using Rows = CodeRows<Config, Config::kRow>;

  /// Of the four rows that a lane helps to bring. Eight lanes share a row, 128 contiguous bytes each time.
  static constexpr int kSteps = 4, kStepRows = 4, kWarpRows = kSteps * kStepRows;
  struct Places {
    std::uint32_t at[kSteps];
    std::uint32_t present;  // a bit for each row of the warp
  };

  /// Sixteen lanes look for the warp's keys, and so do the others.
  __device__ int own_key(int tile) const { return tile * kKeyTile + warp * kWarpRows + lane % kWarpRows; }
  __device__ int look_up(int tile) const { return latent::look_up(params, storage.lists[warp], own_key(tile)); }

  __device__ __forceinline__ Places locate(const Request& request, int tile, int found) const {
    const Token own = latent::locate(params, cache_of(params, request, tile / 2, tile % 2), own_key(tile), found);
    Places places;
    places.present = __ballot_sync(~0u, own.present());
#pragma unroll
    for (int step = 0; step < kSteps; ++step) places.at[step] = __shfl_sync(~0u, own.at, step * kStepRows + lane / 8);
    return places;
  }

  __device__ __forceinline__ void bring(const Request& request, int tile, const Places& places) {
    const std::byte* data = data_of(cache_of(params, request, tile / 2, tile % 2)) + lane % 8 * 16;
    const int first_row = warp * kWarpRows + lane / 8;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      barrier_wait(shared_address(&storage.staged_free[part]), (tiles & 1) ^ 1);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const std::byte* from = data + places.at[step] * Token::kUnit;  // of an absent key anywhere: it is not read
        const bool present = places.present >> (step * kStepRows + lane / 8) & 1;
        const std::uint32_t to =
            shared_address(storage.staging) + Staged::chunk(first_row, 0, lane % 8) + Staged::chunk(step * kStepRows, 0, 0);
#pragma unroll
        for (int piece = part; piece < Staged::kPieces; piece += 2) copy_async(to + piece * kGroupBytes, from + piece * 128, present);
        if (part != Staged::part_of(Staged::kPieces)) continue;
        copy_async(to + Staged::kPieces * kGroupBytes, from + Rows::rope_at(), present);
        if (lane % 8 == 0) copy_async(shared_address(&storage.scales[first_row + step * kStepRows]), from + Rows::Format::kCount, present);
      }
      if (part == 0 && lane == 0) storage.staged_present[warp] = static_cast<std::uint16_t>(places.present);
      copy_async_arrive(shared_address(&storage.staged[part]));
      barrier_arrive(shared_address(&storage.staged[part]));
    }
    ++tiles;
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  std::uint32_t tiles = 0;
};

}  // namespace fovea::gpu::sm90::latent
