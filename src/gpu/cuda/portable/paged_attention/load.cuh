// SPDX-License-Identifier: Apache-2.0
/// The ways of keys, values and queries into shared memory. A warp loads 16 keys of each tile, through the block table.
#pragma once

#include "gpu/common/element.cuh"
#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/fragment.cuh"
#include "gpu/cuda/portable/paged_attention/storage.cuh"

namespace fovea::gpu::portable::paged_attention {

/// NaN in every type. A block number outside the cache names keys of it.
static __device__ const uint4 kNotANumber = {~0u, ~0u, ~0u, ~0u};

/// Where a key lies in the cache.
struct Slot {
  int block = -1, token = 0;

  __device__ std::int64_t at(const detail::CacheStrides& strides) const { return block * strides.block + token * strides.token; }
};
/// `found`: what the block table holds for the key.
__device__ inline Slot slot_of(const Params& params, int key, int found) {
  return {static_cast<unsigned>(found) < static_cast<unsigned>(params.blocks) ? found : -1,
          key - params.page.quotient(key) * params.page.divisor};
}
__device__ inline int look_up(const Params& params, int sequence, int key) {
  return params.block_table[sequence * params.table_stride + params.page.quotient(key)];
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
        whole_rows(is_whole(params.k) && is_whole(params.v)) {}

  /// Before the first of a work tile's key tiles.
  __device__ __forceinline__ void begin() {
    found = next_found(storage.work.first);
    if constexpr (kReadsQueriesFirst) {
#pragma unroll
      for (int i = 0; i < kRowsOfWarp; ++i) read_query(warp + i * kWarps, queries[i]);
    }
  }

  /// Starts the copies of the warp's keys and values. Tiles are loaded one after another.
  __device__ __forceinline__ void load(int tile, int stage) {
    const int key = own_key(tile);
    const Slot slot = slot_of(params, key, found);
    const std::int64_t at = slot.at(lane < kWarpKeys ? params.k.strides : params.v.strides);
    const unsigned wanted = __ballot_sync(~0u, is_wanted(key)), inside = __ballot_sync(~0u, slot.block >= 0);
    found = next_found(tile + 1);
    if (whole_rows && (wanted & inside) == ~0u) {
      copy_rows<false>(params.k, storage.keys(stage), at);
      copy_rows<true>(params.v, storage.values(stage), at);
    } else {
      copy_parts<false>(params.k, storage.keys(stage), at, wanted, inside);
      copy_parts<true>(params.v, storage.values(stage), at, wanted, inside);
    }
  }

  /// Queries, by all threads. Those of e4m3 caches become halves with a power of two as factor; their order follows that of such keys.
  __device__ __forceinline__ void store_queries() {
    if constexpr (kReadsQueriesFirst) {
#pragma unroll
      for (int i = 0; i < kRowsOfWarp; ++i) store_query(warp + i * kWarps, queries[i]);
    } else {
      for (int row = warp; row < Config::kRowTile; row += kWarps) {
        float x[kColumns];
        read_query(row, x);
        store_query(row, x);
      }
    }
  }

 private:
  using Layout = CacheRows<Config>;
  static constexpr int kColumns = Config::kHeadDim / 32;  // of a query row, of each lane
  static constexpr int kRowsOfWarp = Config::kRowTile / kWarps;
  static constexpr bool kReadsQueriesFirst = kRowsOfWarp * kColumns <= 16;  // into as many registers
  static constexpr int kChunks = Config::kRowBytes / 16, kRowLanes = kChunks;
  static constexpr int kRowsAtOnce = 32 / kRowLanes;  // a lane copies the same chunk of several rows

  // ---- keys and values --------------------------------------------------------------------------------------------------------------

  static __device__ bool is_whole(const Cache& cache) { return cache.aligned && cache.row_bytes == Config::kRowBytes; }
  /// Both halves of the warp look at the same keys: one for the keys' rows, one for the values'.
  __device__ int own_key(int tile) const { return tile * kKeyTile + warp * kWarpKeys + lane % kWarpKeys; }
  __device__ bool is_wanted(int key) const { return key >= storage.work.begin && key < storage.work.end; }
  __device__ int next_found(int tile) const {
    const int key = own_key(tile);
    return tile < storage.work.last && is_wanted(key) ? look_up(params, storage.work.sequence, key) : -1;
  }

  /// Of keys that are all in the cache, in aligned rows without padding.
  template <bool kValues>
  __device__ __forceinline__ void copy_rows(const Cache& cache, std::uint32_t to, std::int64_t at) const {
    const int row = lane / kRowLanes, chunk = lane % kRowLanes;
    const std::byte* from = cache.data + kv_head * cache.strides.head + 16 * chunk;
    const std::uint32_t place = to + static_cast<std::uint32_t>(Layout::offset(warp * kWarpKeys + row, chunk));
#pragma unroll
    for (int i = 0; i < kWarpKeys; i += kRowsAtOnce) {
      const std::uint32_t at_row = (place ^ static_cast<std::uint32_t>(Layout::offset(i, 0) % Layout::kSpanBytes)) + i * Layout::kRowBytes;
      copy_async(at_row, from + __shfl_sync(~0u, at, row + i + (kValues ? kWarpKeys : 0)));
    }
  }

  /// Of any keys and rows. Its code is short, as what a warp steps over on its way costs it more than the copies.
  template <bool kValues>
  __device__ __forceinline__ void copy_parts(const Cache& cache, std::uint32_t to, std::int64_t at, unsigned wanted,
                                             unsigned inside) const {
    const std::byte* data = cache.data + kv_head * cache.strides.head;
    const int chunk = lane % kRowLanes, in_row = min(max(cache.row_bytes - 16 * chunk, 0), 16);
#pragma unroll 1
    for (int row = lane / kRowLanes; row < kWarpKeys; row += kRowsAtOnce) {
      const std::byte* from = data + __shfl_sync(~0u, at, row + (kValues ? kWarpKeys : 0));
      const bool in_cache = inside >> row & 1, present = (wanted >> row & 1) && (in_cache || !kValues);
      const int bytes = present ? in_row : 0;
      const void* source = bytes == 0 || !in_cache ? static_cast<const void*>(&kNotANumber) : from + 16 * chunk;
      copy_chunk(cache, to + static_cast<std::uint32_t>(Layout::offset(warp * kWarpKeys + row, chunk)), source, bytes);
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

  /// The columns 32 c + lane of a row; zeros beyond the rows and columns that there are.
  __device__ __forceinline__ void read_query(int row, float (&x)[kColumns]) const {
#pragma unroll
    for (float& y : x) y = 0;
    if (row >= storage.work.rows) return;
    const int of_sequence = storage.work.row + row, token = params.group.quotient(of_sequence);
    const std::int64_t head = kv_head * params.group.divisor + of_sequence - token * params.group.divisor;
    const std::int64_t at = (storage.work.q_begin + token) * params.q_strides.row + head * params.q_strides.head;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = 32 * c + lane;
      if (column >= params.head_dim_qk) continue;
      if (std::is_same_v<typename Config::Cache, __nv_bfloat16> || (Config::kQuantised && params.bf16)) {
        x[c] = to_f32(static_cast<const __nv_bfloat16*>(params.q)[at + column]);
      } else {
        x[c] = to_f32(static_cast<const __half*>(params.q)[at + column]);
      }
    }
  }

  __device__ __forceinline__ void store_query(int row, float (&x)[kColumns]) {
    float factor = 1;
    if (Config::kQuantised && params.bf16) factor = scaled_down(x);
    if (lane == 0) storage.factors[row] = factor;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = place_of(32 * c + lane);
      const int at = QueryRows<Config>::offset(row, column / 8) + column % 8 * 2;
      store_shared_16(shared_address(storage.q) + static_cast<std::uint32_t>(at), packed_pair<typename Config::Element>(x[c], 0));
    }
  }

  /// Divides a row by the power of two by which its largest element lies in [1, 2), and returns it.
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

  /// Where a column of a query row lies: in the order of the columns of keys that a lane gets.
  static __device__ int place_of(int column) {
    if (!Config::kQuantised) return column;
    const int quad = column % 16 / 4, of_quad = column % 4;
    return column / 16 * 16 + of_quad / 2 * 8 + 2 * quad + of_quad % 2;
  }

  const Params& params;
  Storage<Config>& storage;
  const int kv_head, warp, lane;
  const bool whole_rows;
  int found = -1;  // what the block table holds for the lane's key of the next tile
  float queries[kReadsQueriesFirst ? kRowsOfWarp : 1][kColumns];
};

}  // namespace fovea::gpu::portable::paged_attention
