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
        place(params_),
        kv_head(kv_head_),
        lane(static_cast<int>(threadIdx.x) % 32),
        whole_rows(is_whole(params.k) && is_whole(params.v)) {}

  /// Looks up the first keys of a work tile, once all keys of the one before are on their way.
  __device__ __forceinline__ void look_up(const WorkTile& next) {
    if (work == &next) return;
    work = &next;
    found = next_found(next.first);
  }

  /// Before the first of a work tile's key tiles.
  __device__ __forceinline__ void begin(const WorkTile& of) {
    look_up(of);
    copy_queries();
  }

  /// Starts the copies of the warp's keys and values. Tiles are loaded one after another.
  __device__ __forceinline__ void operator()(int tile, int stage) {
    const int key = own_key(tile);
    const Slot slot = slot_of(params, key, found);
    const std::int64_t at = slot.at(lane < kWarpKeys ? params.k.strides : params.v.strides);
    const unsigned wanted = __ballot_sync(~0u, is_wanted(key)), inside = __ballot_sync(~0u, slot.block >= 0);
    found = next_found(tile + 1);
    if (whole_rows && (wanted & inside) == ~0u) {
      copy_rows<false>(params.k, storage.keys(stage), at);
      copy_rows<true>(params.v, storage.values(stage), at);
    } else {
      copy_parts(stage, at, wanted, inside);
    }
  }

  /// Queries of e4m3 caches become halves once they have arrived, with a power of two as factor; their order follows that of such keys.
  __device__ __forceinline__ void convert_queries() {
#pragma unroll 1
    for (int row = place.of_head; row < Config::kRowTile; row += params.head_warps) {
      const int of_cta = place.head * Config::kRowTile + row;
      float x[kColumns];
#pragma unroll
      for (int c = 0; c < kColumns; ++c) x[c] = query(load_shared_16(query_place(of_cta, 32 * c + lane)));
      __syncwarp();
      const float factor = params.bf16 ? scaled_down(x) : 1;
      if (lane == 0) storage.factors[of_cta] = factor;
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        store_shared_16(query_place(of_cta, place_of(32 * c + lane)), packed_pair<__half>(x[c], 0));
      }
    }
  }

 private:
  using Layout = CacheRows<Config>;
  static constexpr int kColumns = Config::kHeadDim / 32;  // of a query row, of each lane
  static constexpr int kChunks = Config::kRowBytes / 16, kRowLanes = kChunks;
  static constexpr int kRowsAtOnce = 32 / kRowLanes;  // a lane copies the same chunk of several rows

  // ---- keys and values --------------------------------------------------------------------------------------------------------------

  static __device__ bool is_whole(const Cache& cache) { return cache.aligned && cache.row_bytes == Config::kRowBytes; }
  /// Both halves of the warp look at the same keys: one for the keys' rows, one for the values'.
  __device__ int own_key(int tile) const { return (tile << params.log2_tile) + place.of_head * kWarpKeys + lane % kWarpKeys; }
  __device__ bool is_wanted(int key) const { return key >= work->begin && key < work->end; }
  __device__ int next_found(int tile) const {
    const int key = own_key(tile);
    return tile < work->last && is_wanted(key) ? paged_attention::look_up(params, work->sequence, key) : -1;
  }

  /// Of keys that are all in the cache, in aligned rows without padding.
  template <bool kValues>
  __device__ __forceinline__ void copy_rows(const Cache& cache, std::uint32_t to, std::int64_t at) const {
    const int row = lane / kRowLanes, chunk = lane % kRowLanes;
    const std::byte* from = cache.data + kv_head * cache.strides.head + 16 * chunk;
    const std::uint32_t first = to + static_cast<std::uint32_t>(Layout::offset(place.warp * kWarpKeys + row, chunk));
#pragma unroll
    for (int i = 0; i < kWarpKeys; i += kRowsAtOnce) {
      const std::uint32_t at_row = (first ^ static_cast<std::uint32_t>(Layout::offset(i, 0) % Layout::kSpanBytes)) + i * Layout::kRowBytes;
      copy_async(at_row, from + __shfl_sync(~0u, at, row + i + (kValues ? kWarpKeys : 0)));
    }
  }

  /// Of any keys and rows. Its code is short, as what a warp steps over on its way costs it more than the copies.
  __device__ __forceinline__ void copy_parts(int stage, std::int64_t at, unsigned wanted, unsigned inside) const {
    const int chunk = lane % kRowLanes;
#pragma unroll 1
    for (int i = lane / kRowLanes; i < 2 * kWarpKeys; i += kRowsAtOnce) {
      const bool values = i >= kWarpKeys;
      const Cache& cache = values ? params.v : params.k;
      const std::byte* from = cache.data + kv_head * cache.strides.head + __shfl_sync(~0u, at, i);
      const int row = i % kWarpKeys, in_row = min(max(cache.row_bytes - 16 * chunk, 0), 16);
      const bool in_cache = inside >> row & 1, present = (wanted >> row & 1) && (in_cache || !values);
      const int bytes = present ? in_row : 0;
      const void* source = bytes == 0 || !in_cache ? static_cast<const void*>(&kNotANumber) : from + 16 * chunk;
      const std::uint32_t to = values ? storage.values(stage) : storage.keys(stage);
      copy_chunk(cache, to + static_cast<std::uint32_t>(Layout::offset(place.warp * kWarpKeys + row, chunk)), source, bytes);
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

  /// Starts the copies of queries, dealt out among the warps of a kv head. They arrive with the first keys, and are issued before: behind
  /// the keys and values of all CTAs they would arrive with the last of these. Zeros beyond the rows and columns that there are.
  __device__ __forceinline__ void copy_queries() {
    constexpr int kQueryChunks = Config::kHeadDim / 8;
#pragma unroll 1
    for (int i = 32 * place.of_head + lane; i < Config::kRowTile * kQueryChunks; i += 32 * params.head_warps) {
      const int row = i / kQueryChunks, chunk = i % kQueryChunks;
      const int of_sequence = work->row + row, token = params.group.quotient(of_sequence);
      const std::int64_t head = kv_head * params.group.divisor + of_sequence - token * params.group.divisor;
      const std::int64_t at = (work->q_begin + token) * params.q_strides.row + head * params.q_strides.head + 8 * chunk;
      const int bytes = row < work->rows && 8 * chunk < params.head_dim_qk ? 16 : 0;
      const auto* from = static_cast<const std::uint16_t*>(params.q) + (bytes == 0 ? 0 : at);
      const std::uint32_t to = query_place(place.head * Config::kRowTile + row, 8 * chunk);
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
    const int quad = column % 16 / 4, of_quad = column % 4;
    return column / 16 * 16 + of_quad / 2 * 8 + 2 * quad + of_quad % 2;
  }

  const Params& params;
  Storage<Config>& storage;
  const WarpPlace place;
  const int kv_head, lane;
  const bool whole_rows;
  const WorkTile* work = nullptr;  // no other has its place, neither the one before nor the one after
  int found = -1;                  // what the block table holds for the lane's key of the next tile
};

}  // namespace fovea::gpu::portable::paged_attention
