// SPDX-License-Identifier: Apache-2.0
/// Keys one by one, decoded. The four warps share each half of a tile, two groups of eight rows each; four lanes share a row, 16 codes of
/// each slice each. The codes of the next half are asked for slice by slice, each as soon as the last ones in its registers are decoded.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
class CodeLoader {
 public:
  static constexpr int kArrivals = kLoadThreads;  // at a half's `full`

  __device__ CodeLoader(const Params& params_, Storage<Config>& storage_) : params(params_), storage(storage_) {
    if (params.cache_scale != nullptr && *params.cache_scale < 0) flip = 0x80808080;
  }

  /// Pairs [begin, end) of tiles. `before` their first keys of a job, something else; space for it comes with the first half of the keys.
  template <class Before>
  __device__ __forceinline__ void operator()(const Request& request, int begin, int end, bool first, Before&& before) {
    Places places;
    find(request, begin, look_up(request, begin), places);
    int found = look_up(request, begin + 1);
    if (first) before();
    Asked asked;
    ask(request, places, begin, 0, asked);
    for (int pair = begin; pair < end; ++pair) {
#pragma unroll 1
      for (int i = 0; i < kHalves; ++i) {
        if (i == 2 && pair == begin && !first) before();
        bring(request, places, found, pair, i, asked);
      }
      parity ^= 1;
    }
  }

 private:
  using Element = typename Config::Element;

  static constexpr int kWarpGroups = 2;  // of eight rows
  static constexpr int kWarpRows = 8 * kWarpGroups;

  /// Of this lane's rows, one of each group, in the even tile and in the odd one.
  struct Places {
    Token of[2][kWarpGroups];
    std::uint32_t present;  // a bit for each row of the warp: 16 of the even tile, 16 of the odd one
    __device__ Token at(int buffer, int group) const { return buffer == 0 ? of[0][group] : of[1][group]; }
  };

  /// Lanes 0 to 15 look up the warp's rows of the even tile, the others those of the odd one.
  static __device__ int own_buffer() { return lane() / kWarpRows; }
  static __device__ int own_row() { return warp() * kWarpRows + lane() % kWarpRows; }
  __device__ int look_up(const Request& request, int pair) const { return latent::look_up(params, request, pair, own_buffer(), own_row()); }
  __device__ void find(const Request& request, int pair, int found, Places& places) const {
    const Token own = locate(params, request, pair, own_buffer(), own_row(), found);
    places.present = __ballot_sync(~0u, own.present());
#pragma unroll
    for (int i = 0; i < 2 * kWarpGroups; ++i) {
      const int source = i * 8 + lane() / 4;
      places.of[i / kWarpGroups][i % kWarpGroups] = {__shfl_sync(~0u, own.at, source), __shfl_sync(~0u, own.scales, source)};
    }
  }

  /// 16 codes of each of four slices, and the scales of all as they lie in memory; rows of 576 codes have no scales, but a fifth slice.
  struct Asked {
    std::uint32_t words[kWarpGroups][5][4];
  };

  /// One half of a tile, whose codes have been asked for.
  __device__ __forceinline__ void bring(const Request& request, Places& places, int& found, int pair, int i, Asked& asked) {
    const int buffer = buffer_of(i), half = half_of(i), slot = buffer * 2 + half;
    const RowCache& cache = cache_of(params, request, pair, buffer);
    const bool last = i + 1 == kHalves;
    const int next_pair = last ? pair + 1 : pair, next_i = last ? 0 : i + 1;
    const RowCache& next_cache = cache_of(params, request, next_pair, buffer_of(next_i));
    barrier_wait(shared_address(&storage.empty[slot]), parity ^ 1);
    if (half == buffer && lane() == 0)
      *reinterpret_cast<std::uint16_t*>(&storage.present[buffer][warp() * 2]) = static_cast<std::uint16_t>(places.present >> buffer * 16);
#pragma unroll
    for (int group = 0; group < kWarpGroups; ++group) copy_plain(cache, places.at(buffer, group), i, group);
    if (last) {
      find(request, pair + 1, found, places);
      found = look_up(request, pair + 2);
    }
    const bool again = &cache == &next_cache;
    with_row(cache.row, [&](auto kind) { answer<decltype(kind)::value>(i, asked, again, cache, places, next_i); });
    if (!again) ask(request, places, next_pair, next_i, asked);
    copy_async_wait_all();
    fence_shared_for_async();
    barrier_arrive(shared_address(&storage.full[slot]));
  }

  // ---- as it is -----------------------------------------------------------------------------------------------------------------

  /// What of a half is no code: plain rows, or the rotary part. A lane has two neighbours of a slice's eight chunks.
  __device__ __forceinline__ void copy_plain(const RowCache& cache, const Token& token, int i, int group) const {
    int begin = half_of(i) * kHalfSlices;
    const int end = half_of(i) == 0 ? kHalfSlices : Config::kSlices;
    int offset = begin * 128;
    if (cache.row != Row::plain) {
      begin = max(code_slices(cache.row), begin);
      offset = cache.rope_at;
    }
    const int chunk = lane() % 4 * 2;
    const std::byte* from = static_cast<const std::byte*>(params.q);
    if (token.present()) from = data_of(cache) + token.at * Token::kUnit + offset + chunk * 16;
    std::uint32_t to = row_at(buffer_of(i), group) + begin * kGroupBytes;
#pragma unroll 1
    for (int slice = begin; slice < end; ++slice, to += kGroupBytes) {
      copy_async(to, from, token.present());
      copy_async(to ^ 16, from + (token.present() ? 16 : 0), token.present());
      from += token.present() ? 128 : 0;
    }
  }

  /// This lane's first chunk of its row, in slice 0.
  __device__ std::uint32_t row_at(int buffer, int group) const {
    const int row = lane() / 4, chunk = lane() % 4 * 2;
    return shared_address(storage.k[buffer]) + (warp() * kWarpGroups + group) * kKeyGroup + row * 128 + (chunk ^ row) * 16;
  }

  // ---- decoded ------------------------------------------------------------------------------------------------------------------

  /// Calls f<row>() for the kind of row that the cache has, if this kernel decodes it: packed caches have queries of bf16.
  template <class F>
  static __device__ __forceinline__ void with_row(Row row, F&& f) {
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

  static __device__ int code_slices(Row row) {
    int slices = Config::kSlices;
    with_row(row, [&](auto kind) { slices = Codes<decltype(kind)::value, Config::kHeadDim>::kCount / kSlice; });
    return slices;
  }

  /// Slices of codes in a half.
  template <Row kRow>
  static __device__ int slices_of(int half) {
    return half == 0 ? kHalfSlices : Codes<kRow, Config::kHeadDim>::kCount / kSlice - kHalfSlices;
  }

  __device__ __forceinline__ void ask(const Request& request, const Places& places, int pair, int i, Asked& to) const {
    const RowCache& cache = cache_of(params, request, pair, buffer_of(i));
    with_row(cache.row, [&](auto kind) {
#pragma unroll
      for (int group = 0; group < kWarpGroups; ++group) {
        const From<decltype(kind)::value> from(cache, places.at(buffer_of(i), group), half_of(i), true);
#pragma unroll
        for (int slice = 0; slice < 5; ++slice) from.load(slice, to.words[group][slice]);
      }
    });
  }

  /// What a lane reads of one half of a row.
  template <Row kRow>
  struct From {
    using Format = Codes<kRow, Config::kHeadDim>;
    static constexpr int kSliceWords = Format::kBits / 2;  // of a lane
    const std::byte *codes, *scales;
    int slices;
    bool present;

    __device__ From(const RowCache& cache, const Token& token, int half, bool wanted)
        : slices(slices_of<kRow>(half)), present(wanted && token.present()) {
      codes = data_of(cache) + token.at * Token::kUnit + (half * (kHalfSlices * kSlice) + lane() % 4 * 16) * Format::kBits / 8;
      scales = cache.data + token.scales * Token::kScaleUnit + half * scale_words<kRow>() * 4;
    }
    /// Slice 4 stands for the scales, if there are any.
    __device__ void load(int slice, std::uint32_t (&to)[4]) const {
      if (Format::kScaled && slice == 4) {
        load_words<scale_words<kRow>()>(scales, present, to);
      } else {
        load_words<kSliceWords>(codes + slice * (kSlice * Format::kBits / 8), present && slice < slices, to);
      }
    }
  };

  /// Decodes what has arrived, and asks for the same of the next half, if `again`.
  template <Row kRow>
  __device__ __forceinline__ void answer(int i, Asked& asked, bool again, const RowCache& cache, const Places& places, int next_i) const {
    const int buffer = buffer_of(next_i), half = half_of(next_i);
    const From<kRow> from[kWarpGroups]{{cache, places.at(buffer, 0), half, again}, {cache, places.at(buffer, 1), half, again}};
    const std::uint32_t to = row_at(buffer_of(i), 0) + half_of(i) * kHalfSlices * kGroupBytes;
#pragma unroll
    for (int slice = 0; slice < 5; ++slice) {
#pragma unroll
      for (int group = 0; group < kWarpGroups; ++group) {
        std::uint32_t(&words)[4] = asked.words[group][slice];
        if (slice < slices_of<kRow>(half_of(i))) {
          std::uint32_t values[8];
          for (int j = 0; j < 4 && kRow == Row::e4m3; ++j) words[j] ^= flip;
          decode<kRow, Element>(words, scale_of<kRow>(asked.words[group][4], slice, lane() % 4), values);
          const std::uint32_t at = to + group * kKeyGroup + slice * kGroupBytes;
          store_shared(at, values[0], values[1], values[2], values[3]);
          store_shared(at ^ 16, values[4], values[5], values[6], values[7]);  // the chunk beside it
        }
        from[group].load(slice, words);
      }
      __syncwarp();  // or the compiler moves all the loads behind all the stores
    }
  }

  // Asked for where they are needed: kept, they would cost registers that the codes have.
  static __device__ int lane() { return lane_index(); }
  static __device__ int warp() { return threadIdx.x % kLoadThreads / 32; }

  const Params& params;
  Storage<Config>& storage;
  std::uint32_t flip = 0;  // signs of e4m3 rows under a negative scale, of which the math takes the magnitude
  std::uint32_t parity = 0;
};

}  // namespace fovea::gpu::sm90::latent
