// SPDX-License-Identifier: Apache-2.0
/// Keys one by one, decoded. A warp has a group of eight rows of each tile, four lanes share a row, 16 codes of each slice each. Alone, a
/// CTA has eight warps of few registers: as soon as a slice is decoded, the same of the next half is asked for into the registers that it
/// leaves. In a cluster each CTA decodes every other group, for both, by four warps; the next half is asked for beside the present one.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Where a key that there is not is read, like any other, without a branch.
alignas(16) __device__ constexpr std::byte kNoRow[(kHalfSlices + 1) * kSlice]{};

template <class Config>
class CodeLoader {
 public:
  std::uint32_t parity = 0;  // of the halves' `empty`, flipped: how often they have been filled

  /// At a half's `full`: every thread, when it has decoded its part, and once more when its copies are there. The other CTA's part counts
  /// by its bytes.
  static constexpr int kArrivals = 2 * Config::kLoadThreads;

  __device__ CodeLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % Config::kLoadThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to ask for them again takes longer
    if (kCluster > 1) rank = cluster_rank();
    const int row = lane / 4, chunk = lane % 4 * 2;
    const std::uint32_t group = shared_address(storage.k[0]) + (warp * kCluster + rank) * kKeyGroup;
    to[0] = group + row * 128 + (chunk ^ row) * 16;
    to[1] = to[0] ^ 16;
    if (kCluster > 1) to_peer = remote_address(group, rank ^ 1) - group;
    if (params.cache_scale != nullptr && *params.cache_scale < 0) flip = 0x80808080;
  }

  /// Pairs [begin, end) of tiles. `before` their first keys of a job, something else; space for it comes with the first half of the keys.
  template <class Before>
  __device__ __forceinline__ void operator()(const Request& request, int begin, int end, bool first, Before&& before) {
    Tile tiles[2];
    const int wanted = look_up(request, begin);
    int found = look_up(request, begin + 1);
    if (first) before();
    const Token here = locate(request, begin, wanted);
    settle<0>(request, begin, here, tiles[0]);
    settle<1>(request, begin, here, tiles[1]);
    Asked a, other;
    Asked& b = kAny ? a : other;  // by turns
    ask(tiles[0], 0, a);
#pragma unroll 1
    for (int pair = begin; pair < end; ++pair) {
      bring<0>(request, pair, found, tiles, a, b);
      bring<1>(request, pair, found, tiles, b, a);
      if (pair == begin && !first) before();
      bring<2>(request, pair, found, tiles, a, b);
      bring<3>(request, pair, found, tiles, b, a);
      parity ^= 1;
    }
  }

 private:
  using Element = typename Config::Element;

  static constexpr int kCluster = Config::kCluster;
  static constexpr int kTileBytes = kGroups * kKeyGroup;
  static constexpr int kWarpRows = 8 * kCluster;  // whose places a warp knows: those that it copies
  static constexpr bool kAny = Config::kRow == Row::any;
  static_assert(kCluster == 1 || (kCluster == 2 && !kAny));

  /// A tile's cache, and this lane's rows: that of the group that its warp decodes, and in a cluster that of the other CTA's.
  struct Tile {
    const std::byte* data;
    Row row;
    Token rows[kCluster];
    std::uint32_t present;  // a bit for each row of the warp
  };

  /// What of a half row has been asked for: 16 codes of each slice, and the scales of all as they lie in memory.
  struct Asked {
    std::uint32_t codes[kHalfSlices + 1][4];
    std::uint32_t scales[4];
  };

  // ---- where the rows are -------------------------------------------------------------------------------------------------------

  /// The first lanes look for the warp's rows of the even tile, as many others for those of the odd one.
  __device__ int own_buffer() const { return lane / kWarpRows % 2; }
  __device__ int own_row() const { return warp * kWarpRows + lane % kWarpRows; }
  __device__ int look_up(const Request& request, int pair) const { return latent::look_up(params, request, pair, own_buffer(), own_row()); }
  __device__ Token locate(const Request& request, int pair, int found) const {
    return latent::locate(params, request, pair, own_buffer(), own_row(), found);
  }
  template <int kBuffer>
  __device__ void settle(const Request& request, int pair, const Token& own, Tile& tile) const {
    const RowCache& cache = cache_of(params, request, pair, kBuffer);
    tile.data = data_of(cache);
    tile.row = kAny ? cache.row : Config::kRow;
    tile.present = __ballot_sync(~0u, own.present()) >> kBuffer * kWarpRows;
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      const int source = kBuffer * kWarpRows + (i ^ rank) * 8 + lane / 4;
      tile.rows[i] = {__shfl_sync(~0u, own.at, source), __shfl_sync(~0u, own.scales, source)};
    }
  }

  // ---- what lies in a row -------------------------------------------------------------------------------------------------------

  /// Calls f<row>() for the kind of row that the cache has, if this kernel decodes it: packed caches have queries of bf16.
  template <class F>
  static __device__ __forceinline__ void with_row(Row row, F&& f) {
    if constexpr (!kAny) {
      f(std::integral_constant<Row, Config::kRow>{});
    } else {
      constexpr bool kPacked = std::is_same_v<Element, __nv_bfloat16>;
      if (row == Row::e4m3) f(std::integral_constant<Row, Row::e4m3>{});
      if constexpr (kPacked && Config::kHeadDim == 576) {
        if (row == Row::v32) f(std::integral_constant<Row, Row::v32>{});
      } else if constexpr (kPacked) {
        if (row == Row::v4) f(std::integral_constant<Row, Row::v4>{});
        if (row == Row::v41) f(std::integral_constant<Row, Row::v41>{});
        if (row == Row::fp4) f(std::integral_constant<Row, Row::fp4>{});
      }
    }
  }

  /// Slices of codes in a half; the left one is codes alone.
  template <Row kRow>
  static constexpr int kRightSlices = Codes<kRow, Config::kHeadDim>::kCount / kSlice - kHalfSlices;
  template <Row kRow>
  static __device__ constexpr int slices_of(int half) {
    return half == 0 ? kHalfSlices : kRightSlices<kRow>;
  }
  template <Row kRow>
  static __device__ int rope_at() {
    if constexpr (kRow == Row::e4m3) {
      return 0;
    } else {
      return static_cast<int>(format_of<kRow>().rope_at(0));
    }
  }

  // ---- a half -------------------------------------------------------------------------------------------------------------------

  /// The i-th half of a pair, whose codes `a` have been asked for; the next will be `b`.
  template <int i>
  __device__ __forceinline__ void bring(const Request& request, int pair, int& found, Tile (&tiles)[2], Asked& a, Asked& b) {
    constexpr int kBuffer = buffer_of(i), kHalf = half_of(i), kSlot = kBuffer * 2 + kHalf, kNext = (i + 1) % kHalves;
    constexpr bool kLast = i + 1 == kHalves;
    constexpr int kAt = kBuffer * kTileBytes + kHalf * kHalfSlices * kGroupBytes;  // of the left-most slice, in the tiles
    const std::uint32_t full = shared_address(&storage.full[kSlot]);
    const Tile tile = tiles[kBuffer];
    if (kLast) {  // nothing else of this pair is to be asked for
      const Token own = locate(request, pair + 1, found);
      settle<0>(request, pair + 1, own, tiles[0]);
      settle<1>(request, pair + 1, own, tiles[1]);
    }
    const Tile& next = tiles[buffer_of(kNext)];
    barrier_wait(shared_address(&storage.empty[kSlot]), parity ^ 1);
    if (kHalf == kBuffer && lane == 0) note_present<kBuffer>(tile.present);
    copy_plain<kHalf>(tile, kAt);
    copy_async_arrive(full);
    // Looked up with the rows: who waits for them waits for this too.
    const auto look_further = [&] {
      if (kLast) found = look_up(request, pair + 2);
    };
    if constexpr (kCluster > 1) {
      constexpr Row kRow = Config::kRow;
      store<kRow>(a, 0, 2, kAt);
      ask(next, half_of(kNext), b);  // when what is needed now has come: to wait for one is to wait for all
      look_further();
      store<kRow>(a, 2, slices_of<kRow>(kHalf), kAt);
      send<kHalf>(kAt, full);
    } else if constexpr (kAny) {
      with_row(tile.row, [&](auto kind) { store<decltype(kind)::value>(a, 0, slices_of<decltype(kind)::value>(kHalf), kAt); });
      ask(next, half_of(kNext), b);
      look_further();
      barrier_arrive(full);
    } else {
      constexpr Row kRow = Config::kRow;
      const Source source = source_of<kRow>(next, half_of(kNext));
      look_further();
      ask_scales<kRow>(source, b);
#pragma unroll
      for (int slice = 0; slice < kHalfSlices + 1; ++slice) {
        if (slice < slices_of<kRow>(kHalf)) store<kRow>(a, slice, slice + 1, kAt);
        if (slice < slices_of<kRow>(half_of(kNext))) ask_slice<kRow>(source, slice, b);
      }
      barrier_arrive(full);  // the math's fence is enough; one here would wait for what has been asked for
    }
  }

  template <int kBuffer>
  __device__ void note_present(std::uint32_t rows) const {
    using Rows = std::conditional_t<(kCluster > 1), std::uint16_t, std::uint8_t>;
    *reinterpret_cast<Rows*>(&storage.present[kBuffer][warp * kCluster]) = static_cast<Rows>(rows);
  }

  /// What of a half is no code: plain rows, or the rotary part. A lane has two neighbours of a slice's eight chunks.
  template <int kHalf>
  __device__ __forceinline__ void copy_plain(const Tile& tile, int at) const {
    constexpr int kSlices = kHalf == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    if (tile.row == Row::plain) copy_slices<kSlices>(tile, kHalf * kHalfSlices * 128, at);
    with_row(tile.row, [&](auto kind) {
      constexpr Row kRow = decltype(kind)::value;
      copy_slices<kSlices - slices_of<kRow>(kHalf)>(tile, rope_at<kRow>(), at + slices_of<kRow>(kHalf) * kGroupBytes);
    });
  }
  template <int kSlices>
  __device__ __forceinline__ void copy_slices(const Tile& tile, int offset, int at) const {
#pragma unroll
    for (int i = 0; i < kCluster; ++i) {
      const Token& row = tile.rows[i];
      const int group = at + (i == 0 ? 0 : (1 - 2 * rank) * kKeyGroup);
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const std::byte* from = row.present() ? tile.data + row.at * Token::kUnit + offset + slice * 128 + lane % 4 * 32 : kNoRow;
        copy_async(to[0] + group + slice * kGroupBytes, from, row.present());
        copy_async(to[1] + group + slice * kGroupBytes, from + 16, row.present());
      }
    }
  }

  // ---- codes --------------------------------------------------------------------------------------------------------------------

  struct Source {
    const std::byte *codes, *scales;
  };
  template <Row kRow>
  __device__ Source source_of(const Tile& tile, int half) const {
    const Token& row = tile.rows[0];
    if (!row.present()) return {kNoRow, kNoRow};
    constexpr int kBits = Codes<kRow, Config::kHeadDim>::kBits;
    return {tile.data + row.at * Token::kUnit + (half * (kHalfSlices * kSlice) + lane % 4 * 16) * kBits / 8,
            tile.data + row.scales * Token::kScaleUnit + half * scale_words<kRow>() * 4};
  }
  template <Row kRow>
  static __device__ __forceinline__ void ask_scales(const Source& source, Asked& to) {
    load_words<scale_words<kRow>()>(source.scales, to.scales);
  }
  /// A lone CTA reads a row's slices one after the other: the line that a slice is half of comes into L2 with it.
  template <Row kRow>
  static __device__ __forceinline__ void ask_slice(const Source& source, int slice, Asked& to) {
    constexpr int kBits = Codes<kRow, Config::kHeadDim>::kBits;
    load_words<kBits / 2, kCluster == 1>(source.codes + slice * (kSlice * kBits / 8), to.codes[slice]);
  }
  __device__ __forceinline__ void ask(const Tile& tile, int half, Asked& to) const {
    with_row(tile.row, [&](auto kind) {
      constexpr Row kRow = decltype(kind)::value;
      const Source source = source_of<kRow>(tile, half);
      ask_scales<kRow>(source, to);
#pragma unroll
      for (int slice = 0; slice < slices_of<kRow>(half); ++slice) ask_slice<kRow>(source, slice, to);
    });
  }

  /// What this warp has decoded of a half, to the other CTA.
  template <int kHalf>
  __device__ __forceinline__ void send(int at, std::uint32_t full) const {
    constexpr int kBytes = slices_of<Config::kRow>(kHalf) * kGroupBytes;
    fence_shared_for_async();
    __syncwarp();
    const std::uint32_t from = to[0] + at;  // the first lane's chunk is the first of the group
    if (lane == 0) copy_to_peer(from + to_peer, from, kBytes, full + to_peer);
    threadIdx.x % Config::kLoadThreads == 0 ? barrier_arrive_expect(full, kGroups / kCluster * kBytes) : barrier_arrive(full);
  }

  /// Slices [begin, end) of a half: 16 codes become two chunks, side by side.
  template <Row kRow>
  __device__ __forceinline__ void store(const Asked& asked, int begin, int end, int at) const {
#pragma unroll
    for (int slice = begin; slice < end; ++slice) {
      std::uint32_t words[4], chunks[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = kRow == Row::e4m3 ? asked.codes[slice][i] ^ flip : asked.codes[slice][i];
      decode<kRow, Element>(words, scale_of<kRow>(asked.scales, slice, lane % 4), chunks);
#pragma unroll
      for (int i = 0; i < 2; ++i) store_shared(to[i] + at + slice * kGroupBytes, chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  int rank = 0;               // of the CTA in its cluster
  std::uint32_t to_peer = 0;  // from an address here to the same in the other CTA
  std::uint32_t to[2];        // where the lane's two chunks of its row go, in slice 0 of the even tile
  std::uint32_t flip = 0;     // signs of e4m3 rows under a negative scale, of which the math takes the magnitude
};

}  // namespace fovea::gpu::sm90::latent
