// SPDX-License-Identifier: Apache-2.0
/// Keys row by row, decoded, for a CTA without a cluster: e4m3 rows, f16 queries, caches of several kinds. Eight warps of few registers
/// each decode eight rows of a tile. Once a slice is decoded, the load of that slice of the next half is issued into its registers.
#pragma once

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/load_gather.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class QuantisedLoader : public RowFinder<Config, 8> {
 public:
  /// At a half's `full`: every thread arrives after it has stored its values, and again when its copies are complete.
  static constexpr int kArrivals = 2 * Config::kLoadThreads;

  __device__ QuantisedLoader(const Params& params_, Storage<Config>& storage_) : RowFinder<Config, 8>(params_, storage_) {
    asm("" : "+r"(warp), "+r"(lane));  // kept, because reading them again takes longer
    const int row = lane / 4, chunk = lane % 4 * 2;
    to[0] = shared_address(storage.k[0]) + warp * kKeyGroup + row * 128 + (chunk ^ row) * 16;
    to[1] = to[0] ^ 16;
    flip = flip_of(params);
  }

  /// Loads pairs [begin, end) of tiles. Calls `before` ahead of a CTA's first keys; later after the first tile of a work tile, when the
  /// queries' stage is free.
  template <class Before>
  __device__ __forceinline__ void operator()(const Sequence&, int begin, int end, bool first, Before&& before) {
    Tile tiles[2];
    const int entry = look_up(begin);
    int next = look_up(begin + 1);
    if (first) before();
    locate_rows(begin, entry, tiles);
    HalfRow codes;
    issue_half(tiles[0], 0, codes);
#pragma unroll 1
    for (int pair = begin; pair < end; ++pair) {
      store_half<0>(pair, next, tiles, codes);
      store_half<1>(pair, next, tiles, codes);
      if (pair == begin && !first) before();
      store_half<2>(pair, next, tiles, codes);
      store_half<3>(pair, next, tiles, codes);
      parity ^= 1;
    }
  }

  using Finder = RowFinder<Config, 8>;
  using Finder::parity;

 private:
  using Element = typename Config::Element;
  using Finder::lane, Finder::look_up, Finder::params, Finder::storage, Finder::warp;

  static constexpr bool kAny = Config::kRow == Row::any;
  static_assert(Config::kCluster == 1);

  /// A tile's cache, and this lane's row.
  struct Tile {
    Row row;
    const std::byte* token;  // null for an absent key
    int scales;              // bytes from there to the scales
    std::uint32_t present;   // a bit for each row of the warp
  };

  __device__ void locate_rows(int pair, int entry, Tile (&tiles)[2]) const {
    const Token own = this->locate(pair, entry);
    const std::uint32_t present = __ballot_sync(~0u, own.present());
#pragma unroll
    for (int buffer = 0; buffer < 2; ++buffer) {
      const RowCache& cache = this->cache_of(pair, buffer);
      const int source = buffer * 8 + lane / 4;
      const std::uint32_t at = __shfl_sync(~0u, own.at, source);
      tiles[buffer] = {kAny ? cache.row : Config::kRow, at != Token::kNone ? token_at(params, data_of(cache), at) : nullptr,
                       __shfl_sync(~0u, own.scales, source), present >> buffer * 8};
    }
  }

  /// Calls f(CodeRows) for the cache's kind of row, if this kernel decodes it. Packed caches have bf16 queries.
  template <class F>
  static __device__ __forceinline__ void with_rows(Row row, F&& f) {
    if constexpr (!kAny) {
      f(CodeRows<Config, Config::kRow>());
    } else {
      constexpr bool kPacked = std::is_same_v<Element, __nv_bfloat16>;
      if (row == Row::e4m3) f(CodeRows<Config, Row::e4m3>());
      if constexpr (kPacked && Config::kHeadDim == 576) {
        if (row == Row::v32) f(CodeRows<Config, Row::v32>());
      } else if constexpr (kPacked) {
        if (row == Row::v4) f(CodeRows<Config, Row::v4>());
        if (row == Row::v41) f(CodeRows<Config, Row::v41>());
        if (row == Row::fp4) f(CodeRows<Config, Row::fp4>());
      }
    }
  }

  // ---- a half -------------------------------------------------------------------------------------------------------------------

  /// Stores the i-th half of a pair, whose loads are in flight, and issues the loads of the next half.
  template <int i>
  __device__ __forceinline__ void store_half(int pair, int& entry, Tile (&tiles)[2], HalfRow& codes) {
    constexpr int kBuffer = buffer_of(i), kHalf = half_of(i), kSlot = kBuffer * 2 + kHalf, kNext = (i + 1) % kHalves;
    constexpr bool kLast = i + 1 == kHalves;
    constexpr int kAt = place_of(i);
    const std::uint32_t full = shared_address(&storage.full[kSlot]);
    const Tile tile = tiles[kBuffer];
    if (kLast) locate_rows(pair + 1, entry, tiles);  // no other load of this pair follows
    const Tile& next = tiles[buffer_of(kNext)];
    barrier_wait(shared_address(&storage.empty[kSlot]), parity ^ 1);
    if (kHalf == kBuffer && lane == 0) storage.present[kBuffer][warp] = static_cast<std::uint8_t>(tile.present);
    copy_plain<kHalf>(tile, kAt);
    copy_async_arrive(full);
    // Issued with the loads of rows: ptxas waits for all of them at once.
    const auto look_further = [&] {
      if (kLast) entry = look_up(pair + 2);
    };
    if constexpr (kAny) {
      with_rows(tile.row, [&](auto rows) {
#pragma unroll
        for (int slice = 0; slice < rows.slices(kHalf); ++slice) store(rows, codes, slice, kAt);
      });
      issue_half(next, half_of(kNext), codes);
      look_further();
    } else {
      constexpr CodeRows<Config, Config::kRow> kRows{};
      const auto source = kRows.source_of(next.token, next.scales, half_of(kNext), lane % 4);
      look_further();
      HalfRow after;
      kRows.load_scales(source, after);
#pragma unroll
      for (int slice = 0; slice < kHalfSlices + 1; ++slice) {
        if (slice < kRows.slices(kHalf)) store(kRows, codes, slice, kAt);
        if (slice < kRows.slices(half_of(kNext))) kRows.template load_slice<true>(source, slice, after);
      }
      codes = after;
    }
    barrier_arrive(full);  // consumers fence; a fence here would wait for loads in flight
  }

  __device__ __forceinline__ void issue_half(const Tile& tile, int half, HalfRow& codes) const {
    with_rows(tile.row, [&](auto rows) { rows.load_codes(rows.source_of(tile.token, tile.scales, half, lane % 4), half, codes); });
  }

  template <class Rows>
  __device__ __forceinline__ void store(Rows rows, const HalfRow& codes, int slice, int at) const {
    std::uint32_t chunks[2][4];
    rows.decode_slice(codes, slice, lane % 4, flip, chunks);
#pragma unroll
    for (int i = 0; i < 2; ++i) store_shared(to[i] + at + slice * kGroupBytes, chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]);
  }

  /// Copies the unquantised slices of a half: plain rows, or the rotary part. A lane has two neighbours of a slice's eight chunks.
  template <int kHalf>
  __device__ __forceinline__ void copy_plain(const Tile& tile, int at) const {
    constexpr int kSlices = kHalf == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    if (tile.row == Row::plain) copy_slices<kSlices>(tile, kHalf * kHalfSlices * 128, at);
    with_rows(tile.row,
              [&](auto rows) { copy_slices<rows.rope_slices(kHalf)>(tile, rows.rope_at(), at + rows.slices(kHalf) * kGroupBytes); });
  }
  template <int kSlices>
  __device__ __forceinline__ void copy_slices(const Tile& tile, int offset, int at) const {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice) {
      const bool present = tile.token != nullptr;
      const std::byte* from = present ? tile.token + offset + slice * 128 + lane % 4 * 32 : kNoRow;
      copy_async(to[0] + at + slice * kGroupBytes, from, present);
      copy_async(to[1] + at + slice * kGroupBytes, from + 16, present);
    }
  }

  std::uint32_t to[2];  // addresses of the lane's two chunks of its row, in slice 0 of the even tile
  std::uint32_t flip;   // signs of e4m3 rows
};

}  // namespace fovea::gpu::sm90::latent
