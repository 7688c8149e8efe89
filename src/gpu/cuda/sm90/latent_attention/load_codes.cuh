// SPDX-License-Identifier: Apache-2.0
/// Keys one by one, decoded. The four warps share each half of a tile, two groups of eight rows each; four lanes share a row, 16 codes of
/// each slice each. While the codes of one group are decoded, those of the next are on their way. In a cluster each CTA decodes one of the
/// two groups, for both.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Where a key that there is not is read, like any other, without a branch.
alignas(16) __device__ constexpr std::byte kNoRow[640]{};

template <class Config>
class CodeLoader {
 public:
  /// At a half's `full`: every thread, when it has decoded its part, and once more when its copies are there. The other CTA's part counts
  /// by its bytes.
  static constexpr int kArrivals = 2 * kLoadThreads;

  __device__ CodeLoader(const Params& params_, Storage<Config>& storage_)
      : params(params_), storage(storage_), warp(threadIdx.x % kLoadThreads / 32), lane(threadIdx.x % 32) {
    asm("" : "+r"(warp), "+r"(lane));  // kept: to ask for them again takes longer
    const int row = lane / 4, chunk = lane % 4 * 2;
    to_lane = shared_address(storage.k[0]) + warp * kWarpGroups * kKeyGroup + row * 128 + (chunk ^ row) * 16;
    if (kCluster > 1) rank = cluster_rank(), to_peer = remote_address(to_lane, rank ^ 1) - to_lane;
    if (params.cache_scale != nullptr && *params.cache_scale < 0) flip = 0x80808080;
  }

  /// Pairs [begin, end) of tiles. `before` their first keys of a job, something else; space for it comes with the first half of the keys.
  template <class Before>
  __device__ __forceinline__ void operator()(const Request& request, int begin, int end, bool first, Before&& before) {
    Tile tiles[2];
    const Token here = locate(request, begin, look_up(request, begin));
    settle<0>(request, begin, here, tiles[0]);
    settle<1>(request, begin, here, tiles[1]);
    int found = look_up(request, begin + 1);
    Asked a, b;  // by turns
    ask(tiles[0], 0, 0, a);
#pragma unroll 1
    for (int pair = begin; pair < end; ++pair) {
      if (pair == begin && first) before();
      bring<0>(request, pair, found, tiles, a, b);
      bring<1>(request, pair, found, tiles, kCluster > 1 ? b : a, kCluster > 1 ? a : b);
      if (pair == begin && !first) before();
      bring<2>(request, pair, found, tiles, a, b);
      bring<3>(request, pair, found, tiles, kCluster > 1 ? b : a, kCluster > 1 ? a : b);
      parity ^= 1;
    }
  }

 private:
  using Element = typename Config::Element;

  static constexpr int kCluster = Config::kCluster;
  static constexpr int kWarpGroups = 2;  // of eight rows
  static constexpr int kWarpRows = 8 * kWarpGroups;
  static constexpr int kTileBytes = kGroups * kKeyGroup;
  static_assert(kCluster == 1 || (kCluster == kWarpGroups && Config::kRow != Row::any));

  /// A tile's cache, and this lane's rows: one of each group, and in a cluster first that of this CTA's group.
  struct Tile {
    const std::byte* data;
    Row row;
    Token rows[kWarpGroups];
    std::uint32_t present;  // a bit for each row of the warp
  };

  /// What of a half row has been asked for: 16 codes of each slice, and the scales of all as they lie in memory.
  struct Asked {
    std::uint32_t codes[kHalfSlices + 1][4];
    std::uint32_t scales[4];
  };

  // ---- where the rows are -------------------------------------------------------------------------------------------------------

  /// Lanes 0 to 15 look for the warp's rows of the even tile, the others for those of the odd one.
  __device__ int look_up(const Request& request, int pair) const {
    return latent::look_up(params, request, pair, lane / kWarpRows, warp * kWarpRows + lane % kWarpRows);
  }
  __device__ Token locate(const Request& request, int pair, int found) const {
    return latent::locate(params, request, pair, lane / kWarpRows, warp * kWarpRows + lane % kWarpRows, found);
  }
  template <int kBuffer>
  __device__ void settle(const Request& request, int pair, const Token& own, Tile& tile) const {
    const RowCache& cache = cache_of(params, request, pair, kBuffer);
    tile.data = data_of(cache);
    tile.row = Config::kRow == Row::any ? cache.row : Config::kRow;
    tile.present = __ballot_sync(~0u, own.present()) >> kBuffer * kWarpRows;
#pragma unroll
    for (int i = 0; i < kWarpGroups; ++i) {
      const int source = kBuffer * kWarpRows + (kCluster > 1 ? i ^ rank : i) * 8 + lane / 4;
      tile.rows[i] = {__shfl_sync(~0u, own.at, source), __shfl_sync(~0u, own.scales, source)};
    }
  }

  // ---- what lies in a row -------------------------------------------------------------------------------------------------------

  /// Calls f<row>() for the kind of row that the cache has, if this kernel decodes it: packed caches have queries of bf16.
  template <class F>
  static __device__ __forceinline__ void with_row(Row row, F&& f) {
    if constexpr (Config::kRow != Row::any) {
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

  /// The i-th half of a pair, the codes of whose first rows are `a`. Those asked for last are `a` again, in a cluster `b`.
  template <int i>
  __device__ __forceinline__ void bring(const Request& request, int pair, int& found, Tile (&tiles)[2], Asked& a, Asked& b) {
    constexpr int kBuffer = buffer_of(i), kHalf = half_of(i), kSlot = kBuffer * 2 + kHalf, kNext = (i + 1) % kHalves;
    constexpr bool kLast = i + 1 == kHalves;
    const std::uint32_t full = shared_address(&storage.full[kSlot]);
    const std::uint32_t to = to_lane + kBuffer * kTileBytes + kHalf * kHalfSlices * kGroupBytes;
    const Tile tile = tiles[kBuffer];
    if (kLast) {  // nothing else of this pair is to be asked for, but of the odd tile's second group
      const Token own = locate(request, pair + 1, found);
      found = look_up(request, pair + 2);
      settle<0>(request, pair + 1, own, tiles[0]);
      settle<1>(request, pair + 1, own, tiles[1]);
    }
    barrier_wait(shared_address(&storage.empty[kSlot]), parity ^ 1);
    if (kHalf == kBuffer && lane == 0)
      *reinterpret_cast<std::uint16_t*>(&storage.present[kBuffer][warp * 2]) = static_cast<std::uint16_t>(tile.present);
    copy_plain<kHalf>(tile, to);
    copy_async_arrive(full);
    const auto ask_next = [&](Asked& asked) { ask(tiles[buffer_of(kNext)], 0, half_of(kNext), asked); };
    if constexpr (kCluster > 1) {
      answer<kHalf>(tile, to + rank * kKeyGroup, a, [&] { ask_next(b); });
      fence_shared_for_async();
      __syncwarp();
      const std::uint32_t group = __shfl_sync(~0u, to, 0) + rank * kKeyGroup;  // the first lane's chunk is the group's first
      if (lane == 0) copy_to_peer(group + to_peer, group, coded_bytes<kHalf>() / 4, full + to_peer);
    } else {
      answer<kHalf>(tile, to, a, [&] { ask(tile, 1, kHalf, b); });
      answer<kHalf>(tile, to + kKeyGroup, b, [&] { ask_next(a); });
    }
    // The math's fence is enough; one here would wait for what has been asked for.
    if (kCluster > 1 && threadIdx.x % kLoadThreads == 0) {
      barrier_arrive_expect(full, coded_bytes<kHalf>());
    } else {
      barrier_arrive(full);
    }
  }

  /// What the other CTA decodes of a half.
  template <int kHalf>
  static __device__ int coded_bytes() {
    if constexpr (Config::kRow == Row::any) {
      return 0;
    } else {
      return kGroups / kCluster * slices_of<Config::kRow>(kHalf) * kGroupBytes;
    }
  }

  /// What of a half is no code: plain rows, or the rotary part. A lane has two neighbours of a slice's eight chunks.
  template <int kHalf>
  __device__ __forceinline__ void copy_plain(const Tile& tile, std::uint32_t to) const {
    constexpr int kSlices = kHalf == 0 ? kHalfSlices : Config::kSlices - kHalfSlices;
    if (tile.row == Row::plain) copy_slices<kSlices>(tile, kHalf * kHalfSlices * 128, to);
    with_row(tile.row, [&](auto kind) {
      constexpr Row kRow = decltype(kind)::value;
      copy_slices<kSlices - slices_of<kRow>(kHalf)>(tile, rope_at<kRow>(), to + slices_of<kRow>(kHalf) * kGroupBytes);
    });
  }
  template <int kSlices>
  __device__ __forceinline__ void copy_slices(const Tile& tile, int offset, std::uint32_t to) const {
#pragma unroll
    for (int i = 0; i < kWarpGroups; ++i) {
      const Token& row = tile.rows[i];
      const int group = kCluster > 1 ? i ^ rank : i;
#pragma unroll
      for (int slice = 0; slice < kSlices; ++slice) {
        const std::byte* from = row.present() ? tile.data + row.at * Token::kUnit + offset + slice * 128 + lane % 4 * 32 : kNoRow;
        copy_async(to + group * kKeyGroup + slice * kGroupBytes, from, row.present());
        copy_async((to ^ 16) + group * kKeyGroup + slice * kGroupBytes, from + 16, row.present());
      }
    }
  }

  /// Decodes what has arrived. A thread that waits for something it has asked for waits for all of that: so it asks for more (`meanwhile`)
  /// when it has what it now needs.
  template <int kHalf, class Meanwhile>
  __device__ __forceinline__ void answer(const Tile& tile, std::uint32_t to, const Asked& asked, Meanwhile&& meanwhile) const {
    with_row(tile.row, [&](auto kind) { store<decltype(kind)::value>(asked, 0, to); });
    meanwhile();
    with_row(tile.row, [&](auto kind) {
      constexpr Row kRow = decltype(kind)::value;
#pragma unroll
      for (int slice = 1; slice < slices_of<kRow>(kHalf); ++slice) store<kRow>(asked, slice, to + slice * kGroupBytes);
    });
  }
  /// 16 codes become two chunks, side by side.
  template <Row kRow>
  __device__ __forceinline__ void store(const Asked& asked, int slice, std::uint32_t to) const {
    std::uint32_t words[4], chunks[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = kRow == Row::e4m3 ? asked.codes[slice][i] ^ flip : asked.codes[slice][i];
    decode<kRow, Element>(words, scale_of<kRow>(asked.scales, slice, lane % 4), chunks);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      store_shared(to ^ i * 16, chunks[i][0], chunks[i][1], chunks[i][2], chunks[i][3]);
    }
  }

  /// `group`: in a cluster, counted from this CTA's on.
  __device__ __forceinline__ void ask(const Tile& tile, int group, int half, Asked& to) const {
    with_row(tile.row, [&](auto kind) {
      constexpr Row kRow = decltype(kind)::value;
      constexpr int kBits = Codes<kRow, Config::kHeadDim>::kBits, kScaleWords = scale_words<kRow>();
      const Token& row = tile.rows[group];
      const std::byte* scales = tile.data + row.scales * Token::kScaleUnit + half * kScaleWords * 4;
      const std::byte* codes = tile.data + row.at * Token::kUnit + (half * (kHalfSlices * kSlice) + lane % 4 * 16) * kBits / 8;
      if (!row.present()) scales = codes = kNoRow;
      load_words<kScaleWords>(scales, to.scales);
#pragma unroll
      for (int slice = 0; slice < slices_of<kRow>(half); ++slice)
        load_words<kBits / 2>(codes + slice * (kSlice * kBits / 8), to.codes[slice]);
    });
  }

  const Params& params;
  Storage<Config>& storage;
  int warp, lane;
  int rank = 0;               // of the CTA in its cluster
  std::uint32_t to_peer = 0;  // from an address here to the same in the other CTA
  std::uint32_t to_lane;      // where the lane's first chunk of its first row goes, in slice 0 of the even tile
  std::uint32_t flip = 0;     // signs of e4m3 rows under a negative scale, of which the math takes the magnitude
  std::uint32_t parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
