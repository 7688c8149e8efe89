// SPDX-License-Identifier: Apache-2.0
/// The loader: copies keys, values and queries into shared memory. A warp loads 16 keys of each tile, through the block table.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/element.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/block_powers.cuh"
#include "gpu/cuda/portable/paged_attention/decoded/rows.cuh"
#include "gpu/cuda/portable/paged_attention/operands.cuh"

namespace fovea::gpu::portable::paged_attention {

/// NaN in every type. Keys of a block number outside the cache are read from here.
static __device__ const uint4 kNotANumber = {~0u, ~0u, ~0u, ~0u};

/// Place of a key in the cache.
struct Slot {
  int block = -1, token = 0;

  __device__ std::int64_t at(const detail::CacheStrides& strides) const { return block * strides.block + token * strides.token; }
};
__device__ inline bool is_inside(const Params& params, int block) {
  return static_cast<unsigned>(block) < static_cast<unsigned>(params.blocks);
}
/// `found`: the key's entry of the block table.
__device__ inline Slot slot_of(const Params& params, int key, int found) {
  return {is_inside(params, found) ? found : -1, key - params.page.quotient(key) * params.page.divisor};
}
__device__ inline int look_up(const Params& params, int sequence, int key) {
  return params.block_table[sequence * params.table_stride + params.page.quotient(key)];
}

/// Keeps an address in registers: else the compiler recomputes it for each use.
__device__ inline const std::byte* kept(const std::byte* address) {
  asm volatile("" : "+l"(address));
  return address;
}

/// from + count * stride, by one instruction that the compiler does not spread over a loop.
__device__ inline const std::byte* advanced(const std::byte* from, unsigned count, unsigned stride) {
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(from) : "r"(count), "r"(stride));
  return from;
}

template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_, int kv_head_)
      : params(params_),
        storage(storage_),
        kv_head(kv_head_),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        k_from(kept(chunk_of(params.k))),
        v_from(kept(chunk_of(params.v))) {
    if constexpr (Config::kScaledKeys) {
      const Cache& cache = lane < kGroupKeys ? params.k : params.v;
      scale_from = kept(cache.scales + kv_head * cache.scale_strides.head);
    }
  }

  /// Loads the block numbers of a work tile's first keys. All copies of the previous work tile have been issued.
  __device__ __forceinline__ void look_up(const WorkTile& next) {
    if (work == &next) return;
    work = &next;
    begin_key = next.begin;
    end_key = next.end;
    table = params.block_table + next.sequence * params.table_stride;
    look_up_tile(next.first);
  }

  /// Called before the first key tile of a work tile.
  __device__ __forceinline__ void begin(const WorkTile& of) {
    look_up(of);
    copy_queries();
  }

  /// Issues the copies of the warp's keys and values. Tiles follow each other.
  __device__ __forceinline__ void operator()(int tile, int stage) {
    if constexpr (Config::kCoded) asm volatile("" : "+r"(lane));  // as in NarrowMath
    int all[kLookUps];
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) all[i] = found[i];
    look_up_tile(tile + Config::kKeyTiles);
#pragma unroll 1
    for (int group = 0; group < Config::kKeyTiles; ++group) {
      const int first = first_key(tile) + group * kGroupKeys;
      const int of = group * kGroupKeys < 32 ? all[0] : all[kLookUps - 1];
      const int block = Config::kKeyTiles == 1 ? of : __shfl_sync(~0u, of, (group * kGroupKeys + lane % kGroupKeys) % 32);
      row = warp * Config::kWarpKeys + group * kGroupKeys;
      if constexpr (Config::kDecodes)
        decode_group(first, block, stage);
      else
        copy_group(first, block, stage);
    }
  }

  /// Called once a stage has arrived.
  __device__ __forceinline__ void prepare_scales(int stage) const {
    if constexpr (Config::Format::kBlockPowers) BlockPowers<Config>::prepare(storage, stage);
  }

  /// Converts the queries of e4m3 caches to halves, times a power of two, in the column order of such keys (Operands::keys).
  __device__ __forceinline__ void convert_queries() {
#pragma unroll 1
    for (int row = warp; row < Config::kRowTile; row += kWarps) {
      float x[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) x[c] = query(load_shared_16(query_place(row, 32 * c + lane)));
      __syncwarp();
      constexpr bool kZeroPoints = Config::Format::kZeroPoints;
      const float factor = params.bf16 || kZeroPoints ? scaled_down(x) : 1;
      if (lane == 0) storage.factors[row] = factor;
      float sum = 0;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        // Products with int4 codes are 2^-12 of the true ones: code_unit() is 2^24, and 2^20 of odd codes.
        if constexpr (kZeroPoints) x[c] *= lane % 2 == 0 ? 0x1p12f : 0x1p8f;
        const std::uint32_t half = pack<__half>(x[c], 0);
        if constexpr (kZeroPoints) sum += unpack<__half>(half).x * (lane % 2 == 0 ? 0x1p-12f : 0x1p-8f);
        store_shared_16(query_place(row, Operands<Config>::query_place(32 * c + lane)), half);
      }
      if constexpr (kZeroPoints) {
        sum = Warp::sum_of_warp(sum);
        if (lane == 0) storage.factors[Config::kRowTile + row] = sum;
      }
    }
  }

 private:
  using Layout = CacheRows<Config>;
  static constexpr int kLookUps = (Config::kWarpKeys + 31) / 32;
  static constexpr int kColumns = Config::kHeadDim / 32;  // a lane's columns of a query row
  static constexpr int kChunks = Config::kRowBytes / 16, kRowLanes = kChunks;
  static constexpr int kRowsAtOnce = 32 / kRowLanes;  // a lane copies one chunk of every kRowsAtOnce-th row

  /// Issues the copies of 16 keys and values; `block`: of key first + lane % 16.
  __device__ __forceinline__ void copy_group(int first, int block, int stage) const {
    const std::uint32_t keys = storage.keys(stage), values = storage.values(stage);
    if (params.in_one_page && is_wanted(first) && is_wanted(first + kGroupKeys - 1) && is_inside(params, block)) {
      const int token = first - params.page.quotient(first) * params.page.divisor + lane / kRowLanes;
      copy_page_rows(params.k, keys, k_from, block, token);
      copy_page_rows(params.v, values, v_from, block, token);
      if constexpr (Config::kScaledKeys) copy_page_scales(storage.scales(stage), block, token - lane / kRowLanes + lane % kGroupKeys);
    } else {
      copy_any_rows(first, block, keys, values);
      if constexpr (Config::kScaledKeys) copy_scales(first, block, storage.scales(stage));
    }
  }

  // ---- rows that are decoded -------------------------------------------------------------------------------------------------------

  /// Loads and decodes 16 keys and values. Absent ones are zeros, and keys of a block outside the cache have NaN scales.
  __device__ __forceinline__ void decode_group(int first, int block, int stage) const {
    const bool of_values = lane >= kGroupKeys;
    const Cache& cache = of_values ? params.v : params.k;
    const int key = first + lane % kGroupKeys;
    const Slot slot = slot_of(params, key, block);
    const bool wanted = is_wanted(key), present = wanted && slot.block >= 0;
    RowPlace place{.row = slot.at(cache.strides), .scales = slot.at(cache.scale_strides)};
    place.scale = present ? row_scale(of_values ? params.v_codes : params.k_codes, scale_from + place.scales, !cache.scale_words)
                          : RowScale{wanted && !of_values ? NAN : 0.0f, 0.0f};
    store_shared_32(scale_place(storage.scales(stage)), __float_as_uint(place.scale.factor));
    const unsigned found = __ballot_sync(~0u, present);
    const RowDecoder<Config> decode{params, kv_head, lane, row};
#pragma unroll 1
    for (int side = 0; side < 2; ++side) decode(side != 0 ? storage.values(stage) : storage.keys(stage), side, place, found);
  }

  // ---- keys and values --------------------------------------------------------------------------------------------------------------

  __device__ const std::byte* chunk_of(const Cache& cache) const {
    return cache.data + kv_head * cache.strides.head + lane % kRowLanes * 16;
  }
  /// The first key of a tile that this warp loads.
  __device__ int first_key(int tile) const { return tile * kTileKeys + warp * Config::kWarpKeys; }
  __device__ bool is_wanted(int key) const { return key >= begin_key && key < end_key; }
  /// The block table's entry for the lane's key of a tile; for a key that is not wanted, that of the nearest wanted one.
  /// If a warp has 16 keys, its halves look up the same ones: one for the keys' rows, one for the values'.
  __device__ void look_up_tile(int tile) {
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      const int key = first_key(tile) + 32 * i + lane % Config::kWarpKeys;
      found[i] = begin_key < end_key ? table[params.page.quotient(min(max(key, begin_key), end_key - 1))] : -1;
    }
  }

  /// Addresses of the lane's chunk in shared memory, of rows kRowsAtOnce apart.
  __device__ std::uint32_t first_place(std::uint32_t to) const {
    return to + static_cast<std::uint32_t>(Layout::offset(row + lane / kRowLanes, lane % kRowLanes));
  }
  /// Rows of formats are short: the L2 cache also gets those of neighbouring heads, which other CTAs read soon.
  static __device__ __forceinline__ void copy_chunk_of_row(std::uint32_t to, const std::byte* from) {
    if constexpr (Config::kScaledKeys && kTarget >= 80) {
      asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(to), "l"(__cvta_generic_to_global(from)) : "memory");
    } else {
      copy_async(to, from);
    }
  }
  static __device__ std::uint32_t place_of_row(std::uint32_t first, int i) {
    return (first ^ static_cast<std::uint32_t>(Layout::offset(i, 0) % Layout::kSpanBytes)) + i * Layout::kRowBytes;
  }

  /// Copies rows of keys in one block; they are aligned and without padding.
  __device__ __forceinline__ void copy_page_rows(const Cache& cache, std::uint32_t to, const std::byte* from, unsigned block,
                                                 unsigned token) const {
    const std::uint32_t first = first_place(to);
    const auto block_stride = static_cast<unsigned>(cache.strides.block), stride = static_cast<unsigned>(cache.strides.token);
    from = advanced(advanced(from, block, block_stride), token, stride);
#pragma unroll
    for (int i = 0; i < kGroupKeys; i += kRowsAtOnce) copy_chunk_of_row(place_of_row(first, i), advanced(from, i, stride));
  }

  /// Copies rows of keys in several blocks, absent or outside the cache, and rows that are not aligned or have padding.
  __device__ __forceinline__ void copy_any_rows(int first, int block, std::uint32_t keys, std::uint32_t values) const {
    const int key = first + lane % kGroupKeys;
    const Slot slot = slot_of(params, key, block);
    const std::int64_t at = slot.at(lane < kGroupKeys ? params.k.strides : params.v.strides);
    const unsigned wanted = __ballot_sync(~0u, is_wanted(key)), inside = __ballot_sync(~0u, slot.block >= 0);
    if (params.whole_rows && (wanted & inside) == ~0u) {
      copy_rows<false>(keys, k_from, at);
      copy_rows<true>(values, v_from, at);
    } else if (Config::kScaledKeys && params.word_rows && (wanted & inside) == ~0u) {
      copy_words(keys, params.k, at, 0);
      copy_words(values, params.v, at, kGroupKeys);
    } else {
      copy_chunks(keys, values, at, wanted, inside);
    }
  }
  /// The lane's place for scales: lanes of the second half have values.
  __device__ std::uint32_t scale_place(std::uint32_t to) const {
    return to + static_cast<std::uint32_t>(((lane >= kGroupKeys ? Config::kStageKeys : 0) + row + lane % kGroupKeys) * Config::kKeyScales);
  }
  /// Copies the scales of keys in one block, which are whole words.
  __device__ __forceinline__ void copy_page_scales(std::uint32_t to, unsigned block, unsigned token) const {
    const detail::CacheStrides& strides = params.k.scale_strides;
    const auto block_stride = static_cast<unsigned>(strides.block), stride = static_cast<unsigned>(strides.token);
    const std::byte* from = advanced(advanced(scale_from, block, block_stride), token, stride);
    const std::uint32_t place = scale_place(to);
#pragma unroll
    for (int i = 0; i < Config::kKeyScales; i += 4) copy_async_word(place + i, from + i);
  }
  /// Copies the scales of any keys, a key's by a lane. Absent keys have zeros, keys of a block outside the cache NaN.
  __device__ __forceinline__ void copy_scales(int first, int block, std::uint32_t to) const {
    const bool of_values = lane >= kGroupKeys;
    const Cache& cache = of_values ? params.v : params.k;
    const int key = first + lane % kGroupKeys;
    const Slot slot = slot_of(params, key, block);
    const std::byte* from = scale_from + slot.at(cache.scale_strides);
    const bool inside = slot.block >= 0, present = is_wanted(key) && (inside || !of_values);
    if (!inside) from = reinterpret_cast<const std::byte*>(&kNotANumber);
    const std::uint32_t place = scale_place(to);
#pragma unroll
    for (int i = 0; i < Config::kKeyScales; i += 4) {
      if (!present || i >= cache.scale_bytes) {
        store_shared_32(place + i, 0);
      } else if (cache.scale_words) {
        copy_async_word(place + i, from + i);
      } else {
        store_shared_32(place + i, scale_bits(from + i, cache.scale_bytes - i));
      }
    }
  }
  /// A word of scales from f16, or from `left` bytes.
  static __device__ __forceinline__ std::uint32_t scale_bits(const std::byte* from, int left) {
    if constexpr (Config::Format::kTokenScales) {
      return __float_as_uint(__half2float(*reinterpret_cast<const __half*>(from)));
    } else {
      std::uint32_t word = 0;
      for (int i = 0; i < min(left, 4); ++i) word |= static_cast<std::uint32_t>(from[i]) << (8 * i);
      return word;
    }
  }

  /// Copies rows of keys that are all in the cache, word by word; they have no padding.
  __device__ __forceinline__ void copy_words(std::uint32_t to, const Cache& cache, std::int64_t at, int from_lane) const {
    constexpr int kRowWords = Config::kRowBytes / 4, kLanes = std::min(kRowWords, 32), kAtOnce = 32 / kLanes;
    const std::byte* base = cache.data + kv_head * cache.strides.head + lane % kLanes * 4;
#pragma unroll 1
    for (int i = 0; i < kGroupKeys; i += kAtOnce) {
      const int of_group = i + lane / kLanes;
      const std::byte* from = base + __shfl_sync(~0u, at, of_group + from_lane);
#pragma unroll
      for (int word = 0; word < kRowWords; word += kLanes) {
        const int chunk = (word + lane % kLanes) / 4;
        copy_async_word(to + static_cast<std::uint32_t>(Layout::offset(row + of_group, chunk) + lane % 4 * 4), from + 4 * word);
      }
    }
  }

  /// Copies rows of keys that are all in the cache; they are aligned and without padding.
  template <bool kValues>
  __device__ __forceinline__ void copy_rows(std::uint32_t to, const std::byte* from, std::int64_t at) const {
    const std::uint32_t first = first_place(to);
#pragma unroll
    for (int i = 0; i < kGroupKeys; i += kRowsAtOnce) {
      copy_chunk_of_row(place_of_row(first, i), from + __shfl_sync(~0u, at, lane / kRowLanes + i + (kValues ? kGroupKeys : 0)));
    }
  }

  /// Copies any rows of any keys. Its code is short: code that a warp jumps over costs more than these copies.
  __device__ __forceinline__ void copy_chunks(std::uint32_t keys, std::uint32_t values, std::int64_t at, unsigned wanted,
                                              unsigned inside) const {
    const int chunk = lane % kRowLanes;
#pragma unroll 1
    for (int i = lane / kRowLanes; i < 2 * kGroupKeys; i += kRowsAtOnce) {
      const bool of_values = i >= kGroupKeys;
      const Cache& cache = of_values ? params.v : params.k;
      const std::byte* from = cache.data + kv_head * cache.strides.head + __shfl_sync(~0u, at, i);
      const int of_group = i % kGroupKeys, in_row = min(max(cache.row_bytes - 16 * chunk, 0), 16);
      const bool in_cache = inside >> of_group & 1, present = (wanted >> of_group & 1) && (in_cache || !of_values);
      const int bytes = present ? in_row : 0;
      const void* source = bytes == 0 || !in_cache ? static_cast<const void*>(&kNotANumber) : from + 16 * chunk;
      const std::uint32_t to = of_values ? values : keys;
      copy_chunk(cache, to + static_cast<std::uint32_t>(Layout::offset(row + of_group, chunk)), source, bytes);
    }
  }
  static __device__ __forceinline__ void copy_chunk(const Cache& cache, std::uint32_t to, const void* from, int bytes) {
    using Unit = std::conditional_t<Config::kQuantised, std::uint8_t, std::uint16_t>;
    if (cache.aligned) {
      copy_async_part(to, from, bytes);
    } else {
      copy_units<Unit>(to, from, bytes);
    }
  }

  // ---- queries ----------------------------------------------------------------------------------------------------------------------

  /// Issues the copies of queries by all warps, before those of the first keys: behind the keys and values of all CTAs
  /// they would arrive last. Rows and columns past the end are zeros.
  __device__ __forceinline__ void copy_queries() {
    constexpr int kQueryChunks = Config::kHeadDim / 8;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < Config::kRowTile * kQueryChunks; i += kThreads) {
      const int row = i / kQueryChunks, chunk = i % kQueryChunks;
      const int of_sequence = work->row + row, token = params.group.quotient(of_sequence);
      const std::int64_t head = kv_head * params.group.divisor + of_sequence - token * params.group.divisor;
      const std::int64_t at = (work->q_begin + token) * params.q_strides.row + head * params.q_strides.head + 8 * chunk;
      const int bytes = row < work->rows && 8 * chunk < params.head_dim_qk ? 16 : 0;
      const auto* from = static_cast<const std::uint16_t*>(params.q) + (bytes == 0 ? 0 : at);
      const std::uint32_t to = query_place(row, 8 * chunk);
      if (params.q_aligned) {
        copy_async_part(to, from, bytes);
      } else {
        copy_units<std::uint16_t>(to, from, bytes);
      }
    }
  }
  __device__ std::uint32_t query_place(int row, int column) const {
    return shared_address(storage.q) + static_cast<std::uint32_t>(QueryRows<Config>::offset(row, column / 8) + column % 8 * 2);
  }
  __device__ float query(std::uint16_t bits) const {
    return params.bf16 ? __uint_as_float(std::uint32_t{bits} << 16) : __half2float(__ushort_as_half(bits));
  }

  /// Divides a row by a power of two, so that its largest element lies in [1, 2). Returns the power.
  static __device__ float scaled_down(float (&x)[kColumns]) {
    float largest = 0;
#pragma unroll
    for (const float y : x) largest = fmaxf(largest, fabsf(y));
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
    const int exponent = min(max((__float_as_int(largest) >> 23) - 127, -126), 126);
    const float inverse = __int_as_float((127 - exponent) << 23);
#pragma unroll
    for (float& y : x) y *= inverse;
    return __int_as_float((127 + exponent) << 23);
  }

  const Params& params;
  Storage<Config>& storage;
  const int kv_head, warp;
  int lane;
  const std::byte *const k_from, *const v_from;  // the lane's chunk of the head's first row
  const std::byte* scale_from = nullptr;         // the head's first scale, of values in the second half of the warp
  const WorkTile* work = nullptr;                // neighbouring work tiles have other addresses
  int row = 0;                                   // of a stage, the first of the 16 that are copied
  int begin_key = 0;                             // of `work`
  int end_key = 0;
  const std::int32_t* table = nullptr;  // of its sequence
  int found[kLookUps];                  // look_up_tile() of the next tile
};

}  // namespace fovea::gpu::portable::paged_attention
