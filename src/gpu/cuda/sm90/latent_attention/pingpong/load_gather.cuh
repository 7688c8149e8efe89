// SPDX-License-Identifier: Apache-2.0
/// Keys row by row, as they are stored: any page, or the tokens that a query lists.
#pragma once

#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::latent {

/// Base of the loaders that gather rows: finds the rows of a load warp, kRows of each tile. A pair's entries are read one pair ahead.
template <class Config, int kRows>
class RowFinder {
 public:
  std::uint32_t parity = 0;  // of the halves' `empty`, flipped: it changes with each fill

 protected:
  __device__ RowFinder(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {}

  /// The first kRows lanes find rows of the even tile, the next kRows lanes those of the odd tile.
  __device__ int own_buffer() const { return 2 * kRows == 32 ? lane / kRows : lane / kRows % 2; }
  __device__ int own_key(int pair) const { return pair * kPair + own_buffer() * kKeyTile + warp * kRows + lane % kRows; }
  __device__ int look_up(int pair) const { return latent::look_up(params, storage.lists[warp], own_key(pair)); }
  __device__ Token locate(int pair, int entry) const { return latent::locate(params, cache_of(pair, own_buffer()), own_key(pair), entry); }
  __device__ const RowCache& cache_of(int pair, int buffer) const {
    return storage.lists[warp].cache_of(params, pair * kPair + buffer * kKeyTile);
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
};

/// Four warps share each half of a tile, a quarter of its rows each. Addresses are computed while consumers compute.
template <class Config>
class GatherLoader : public RowFinder<Config, kKeyTile * 32 / Config::kLoadThreads> {
 public:
  static constexpr int kWarps = Config::kLoadThreads / 32, kRows = kKeyTile / kWarps;

  /// At a half's `full`: every thread arrives when its copies are complete. One lane of each warp also arrives, after it has stored which
  /// keys are present.
  static constexpr int kArrivals = Config::kLoadThreads + kWarps;

  __device__ GatherLoader(const Params& params_, Storage<Config>& storage_) : RowFinder<Config, kRows>(params_, storage_) {}

  /// Loads pairs [begin, end) of tiles. Calls `before` ahead of a work tile's first keys, because consumers need queries first.
  template <class Before>
  __device__ __forceinline__ void operator()(const Sequence&, int begin, int end, bool first, Before&& before) {
    Rows rows;
    const int entry = look_up(begin);
    int next = look_up(begin + 1);
    if (first) before();
    locate_rows(begin, entry, rows);
    if (!first) before();
    for (int pair = begin; pair < end; ++pair) {
#pragma unroll
      for (int i = 0; i < kHalves; ++i) load_half(rows, pair, i);
      parity ^= 1;
      locate_rows(pair + 1, next, rows);
      next = look_up(pair + 2);
    }
  }

  using Finder = RowFinder<Config, kRows>;
  using Finder::parity;

 private:
  using Finder::lane, Finder::look_up, Finder::params, Finder::storage, Finder::warp;
  static constexpr int kStepRows = 4, kSteps = kRows / kStepRows;  // eight lanes share a row, 16 bytes of a slice each

  /// The rows that this lane copies, of the even tile and of the odd one.
  struct Rows {
    std::uint32_t at[2][kSteps];
    std::uint32_t present;  // a bit for each row of the warp: 16 of the even tile, 16 of the odd one
  };

  __device__ void locate_rows(int pair, int entry, Rows& rows) const {
    const Token own = this->locate(pair, entry);
    rows.present = __ballot_sync(~0u, own.present());
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int source = i / kSteps * kRows + i % kSteps * kStepRows + lane / 8;
      rows.at[i / kSteps][i % kSteps] = __shfl_sync(~0u, own.at, source);
    }
  }

  __device__ __forceinline__ void load_half(const Rows& rows, int pair, int i) {
    const int buffer = buffer_of(i), half = half_of(i), slot = buffer * 2 + half;
    const int slices = half == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    const std::byte* data = data_of(this->cache_of(pair, buffer)) + half * kHalfSlices * 128 + lane % 8 * 16;
    const std::uint32_t to = shared_address(storage.k[buffer]) + warp * (kRows / 8) * kKeyGroup + half * kHalfSlices * kGroupBytes;
    barrier_wait(shared_address(&storage.empty[slot]), parity ^ 1);
    if (half == buffer && lane == 0)
      *reinterpret_cast<std::uint16_t*>(&storage.present[buffer][warp * 2]) = static_cast<std::uint16_t>(rows.present >> buffer * kRows);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int row = step * kStepRows + lane / 8;
      const bool present = rows.at[buffer][step] != Token::kNone;
      const std::byte* from = present ? token_at(params, data, rows.at[buffer][step]) : static_cast<const std::byte*>(params.q);
      const std::uint32_t row_at = to + row / 8 * kKeyGroup + row % 8 * 128 + ((lane % 8) ^ (row % 8)) * 16;
#pragma unroll
      for (int slice = 0; slice < slices; ++slice) copy_async(row_at + slice * kGroupBytes, from + (present ? slice * 128 : 0), present);
    }
    const std::uint32_t full = shared_address(&storage.full[slot]);
    copy_async_arrive(full);
    if (lane == 0) barrier_arrive(full);
  }
};

}  // namespace fovea::gpu::sm90::latent
