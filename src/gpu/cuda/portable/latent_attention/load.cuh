// SPDX-License-Identifier: Apache-2.0
/// The loader: copies keys into shared memory, through the block table or the lists of a query token. Eight threads copy one key of each
/// tile.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/portable/latent_attention/storage.cuh"

namespace fovea::gpu::portable::latent_attention {

/// NaN in every type. Keys of a block number outside the cache are read from here.
static __device__ const uint4 kNotANumber = {~0u, ~0u, ~0u, ~0u};

template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_, int kv_head)
      : params(params_), storage(storage_), head_offset(kv_head * params.main.strides.head) {}

  /// Called before the first key tile of a work tile.
  __device__ __forceinline__ void begin(const WorkTile& work_, int tile) {
    work = &work_;
    main_end = work->end;
    if (params.listed) {
      const ListedToken token(params, work->sequence);
      main_end = token.length(params, params.main.list);
      table = token.indices(params.main.list);
    } else {
      table = params.block_table + work->sequence * params.table_stride;
    }
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) found[pass] = find(tile, row_of_pass(pass));
  }

  /// Issues the copies of a tile. Tiles follow each other.
  __device__ __forceinline__ void operator()(int tile, int stage) {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const int row = row_of_pass(pass), entry = found[pass];
      found[pass] = find(tile + 1, row);
      copy_key(key_at(tile * kKeys + row, entry), stage, row);
    }
  }

  /// Fetches rows of the tile that is loaded next into L2, as its stage is not free yet.
  __device__ __forceinline__ void prefetch(int tile) const {
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) {
      const Key key = key_at(tile * kKeys + row_of_pass(pass), found[pass]);
      if (!key.inside) continue;
      const std::byte* from = row_of(key.cache, key.block, key.slot);
#pragma unroll 1
      for (int i = 2 * chunk(); i < key.cache.format.chunks; i += 2 * kRowThreads) prefetch_line(from + 16 * i);
    }
  }

 private:
  using Rows = KeyRows<Config>;
  static constexpr int kKeys = Config::kKeys, kRowThreads = Rows::kSpanChunks;
  static constexpr int kPassRows = kThreads / kRowThreads, kPasses = kKeys / kPassRows;
  static_assert(kKeys % kPassRows == 0 && Rows::kSpanBytes == 128);

  static __device__ int chunk() { return static_cast<int>(threadIdx.x) % kRowThreads; }
  static __device__ int row_of_pass(int pass) { return static_cast<int>(threadIdx.x) / kRowThreads + pass * kPassRows; }

  /// A key of a cache. Without `present` it becomes zeros, without `inside` NaN.
  struct Key {
    const RowCache& cache;
    Source source;
    int block, slot;
    bool present, inside;
  };

  /// `entry`: as find() returned it.
  __device__ __forceinline__ Key key_at(int key, int entry) const {
    // A key past the end has the main cache's format: its codes become zeros, as there may be no extra cache.
    const bool wanted = key >= work->begin && key < work->end, of_main = key < main_end || key >= work->end;
    const RowCache& cache = of_main ? params.main : params.extra;
    int block = entry, slot = key - cache.page.quotient(key) * cache.page.divisor;
    bool inside = wanted;
    if (params.listed) {
      block = cache.page.quotient(max(entry, 0));
      slot = entry - block * cache.page.divisor;
      inside = wanted && entry >= 0;
    }
    inside = inside && static_cast<unsigned>(block) < static_cast<unsigned>(cache.blocks);
    // A listed token outside the cache is ignored, a visible key outside is NaN.
    return {cache, !inside ? kAbsent : of_main ? kMain : kExtra, block, slot, params.listed ? inside : wanted, inside};
  }

  /// Copies a key to a row of a stage.
  __device__ __forceinline__ void copy_key(const Key& key, int stage, int row) const {
    if (params.listed && chunk() == 0) storage.sources[stage][row] = key.source;
    if (is_coded<Config>(params)) {
      copy_codes(key, stage, row);
    } else {
      copy_row(key, stage, row);
    }
  }

  /// The block table's entry for a key of a tile, or the listed index.
  __device__ int find(int tile, int row) const {
    const int key = tile * kKeys + row;
    if (key < work->begin || key >= work->end) return -1;
    if (params.listed) {
      return key < main_end ? table[key] : ListedToken(params, work->sequence).indices(params.extra.list)[key - main_end];
    }
    return table[params.main.page.quotient(key)];
  }
  __device__ const std::byte* row_of(const RowCache& cache, int block, int slot) const {
    return cache.data + head_offset + block * cache.strides.block + slot * cache.strides.token;
  }

  __device__ __forceinline__ void copy_row(const Key& key, int stage, int row) const {
    const std::uint32_t to = storage.keys(stage) + static_cast<std::uint32_t>(Rows::offset(row, chunk()));
    const std::byte* from = row_of(key.cache, key.block, key.slot) + 16 * chunk();
    if (key.cache.aligned && key.inside) {
#pragma unroll
      for (int span = 0; span < Rows::kSpans; ++span) copy_async(to + 128 * span, from + 128 * span);
      return;
    }
#pragma unroll 1
    for (int span = 0; span < Rows::kSpans; ++span) {
      if (key.inside) {
        copy_units<std::uint16_t>(to + 128 * span, from + 128 * span, 16);
      } else {
        copy_async(to + 128 * span, &kNotANumber, key.present);
      }
    }
  }

  /// Copies a coded row as it is stored, and its scales behind it if they lie elsewhere.
  __device__ __forceinline__ void copy_codes(const Key& key, int stage, int row) const {
    const std::uint32_t to = shared_address(storage.codes(params, stage, row));
    const std::byte* from = row_of(key.cache, key.block, key.slot);
    const std::byte* scales =
        key.cache.data + key.block * key.cache.strides.block + key.cache.scales_at + key.slot * key.cache.scales_stride;
#pragma unroll 1
    for (int i = chunk(); i < key.cache.format.chunks; i += kRowThreads) {
      copy_async(to + 16 * i, key.inside ? static_cast<const void*>(from + 16 * i) : &kNotANumber, key.present);
    }
    if (chunk() >= key.cache.format.scale_words) return;
    if (key.present) {
      copy_async_word(to + kScalesAt + 4 * chunk(), key.inside ? static_cast<const void*>(scales + 4 * chunk()) : &kNotANumber);
    } else {
      store_shared_32(to + kScalesAt + 4 * chunk(), 0);
    }
  }

  const Params& params;
  Storage<Config>& storage;
  const std::int64_t head_offset;
  const WorkTile* work = nullptr;
  const std::int32_t* table = nullptr;  // of the work tile's sequence, by keys
  int main_end = 0;                     // of the keys of `table`
  int found[kPasses];                   // find() of the next tile
};

}  // namespace fovea::gpu::portable::latent_attention
