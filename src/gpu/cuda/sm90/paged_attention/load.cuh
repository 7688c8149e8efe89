// SPDX-License-Identifier: Apache-2.0
/// The producers: one warp loads queries and the keys that the block table names into shared memory,
/// another warp the values.
#pragma once

#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/dense/exact_row.cuh"
#include "gpu/cuda/sm90/dense/load.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/paged_attention/config.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// Rows of a sequence's keys and values in the cache, for dense::ExactRow.
template <class Element>
struct PagedKeys {
  const Params& params;
  const std::int32_t* table;
  int kv_head;

  __device__ PagedKeys(const Params& params_, const WorkTile& work, int kv_head_)
      : params(params_), table(params.block_table + work.batch * params.table_stride), kv_head(kv_head_) {}

  __device__ KeyRow<Element> operator()(int key) const {
    const int entry = params.page.quotient(key), block = table[entry], token = key - entry * params.page.divisor;
    if (!params.has(block)) return {nullptr, nullptr};
    const auto in = [&](const ClippedRows& cache) {
      const detail::RowStrides& strides = cache.strides;
      return static_cast<const Element*>(cache.data) + block * strides.batch + token * strides.row + kv_head * strides.head;
    };
    return {in(params.k), in(params.v)};
  }
};

/// A whole warp, whose lanes load the rows of a key tile that one page holds each. Rows past the sequence
/// are zeros, and so are pages that no query row of the tile sees. A lane's copy takes some 80 clocks to
/// issue, so keys and values have a warp each.
template <class Config, bool kValues>
class Loader {
 public:
  __device__ Loader(const Params& params_, dense::Storage<Config>& storage_)
      : params(params_), storage(storage_), lane(threadIdx.x % 32), copies(lane * params.box_rows < Config::kKeyTile) {}

  __device__ void operator()() {
    PipelineState<dense::kWorkTiles> at;
    PipelineState<Config::kQueryBuffers> buffer;
    for (bool done = false; !done; at.advance(), buffer.advance()) {
      barrier_wait(shared_address(&storage.work_full[at.stage]), at.parity);
      const WorkTile& work = storage.work_tiles[at.stage];
      done = work.done;
      if (!kValues || !done) load(work, buffer, at.stage);
    }
  }

 private:
  /// The lane's rows of a key tile: `valid` of them, from `token` of a block on. The block is -1 outside
  /// the cache. Without any row, `token` is the one after the page's last, where boxes are out of bounds.
  struct Box {
    int block = 0, token = 0, valid = 0, kv_head = 0;
  };

  /// Loads key tiles from the last to the first, as consumers read them, also across work tiles. The work
  /// tile with `done` adds a key tile out of bounds where consumers wait for one.
  __device__ void load(const WorkTile& work, PipelineState<Config::kQueryBuffers> buffer, int work_slot) {
    const bool ends = !kValues && work.done;
    // The work tile may be overwritten once the last copy is issued.
    const int last = ends ? 1 : work.last, first = ends ? 0 : work.first;
    Box next = find(work, last - 1);
    for (int tile = last - 1; tile >= first; --tile) {
      const Box box = next;
      if (tile > first) next = find(work, tile - 1);  // arrives during the wait for the stage
      if constexpr (kValues) {
        load_tile<Config::kSlicesV>({params.v, params.v_pages, &params.v.beyond}, box, storage.v, storage.v_full, storage.v_empty);
      } else {
        // No copy may be in flight when the CTA ends.
        if (!work.done || (started && Config::kOverlap))
          load_tile<Config::kSlicesQk>({params.k, params.k_pages, &params.outside}, box, storage.k, storage.k_full, storage.k_empty);
        if (tile == last - 1) dense::load_queries<Config>(params, storage, work, buffer, work_slot, lane == 0);
        started = true;
      }
    }
  }

  __device__ Box find(const WorkTile& work, int tile) const {
    const int key = tile * Config::kKeyTile + lane * params.box_rows;
    const int last_token = min(work.token + (Config::kRowTile >> params.packed_shift), work.seq_q) - 1;
    const int begin = work.keys_of(work.token).begin, end = work.keys_of(last_token).end;
    if (!copies || key >= end || key + params.box_rows <= begin) return {.token = params.page.divisor};
    const int entry = params.page.quotient(key);
    const int block = params.block_table[work.batch * params.table_stride + entry];
    return {params.has(block) ? block : -1, key - entry * params.page.divisor, min(work.seq_k - key, params.box_rows),
            work.head / params.heads_per_kv};
  }

  struct Cache {
    const ClippedRows& rows;
    const PageBoxes& pages;
    const CUtensorMap* outside;  // map of rows in no block
  };

  template <int kSlices, int kStages, int kBytes>
  __device__ void load_tile(const Cache& cache, Box box, std::byte (&tiles)[kStages][kBytes], std::uint64_t* full_barriers,
                            std::uint64_t* empty_barriers) {
    if (lane == 0) producer_acquire(position, full_barriers, empty_barriers, kBytes);
    __syncwarp();
    const std::uint32_t full = shared_address(full_barriers + position.stage);
    const std::uint32_t to = shared_address(tiles[position.stage]) + lane * params.box_rows * kSlices * kSliceBytes;
    const bool has_box = static_cast<unsigned>(box.block) < static_cast<unsigned>(cache.pages.blocks);
    const bool is_one = has_box && (box.valid == params.box_rows || box.valid == 0);
    if (copies && is_one) {
      const int column = box.kv_head * cache.pages.column_step, slice = box.kv_head * cache.pages.slice_step;
      tma_load(to, &cache.pages.map, {column, 0, slice, box.token / kGroupRows, box.block * cache.rows.batch_step}, full);
    } else if (copies) {
      load_groups<kSlices>(cache, box, to, full);
    }
    __syncwarp();
    position.advance();
  }

  /// Loads boxes of eight rows of one slice: of rows that end inside of a page, that are in no block, or
  /// whose slices are not whole.
  template <int kSlices>
  __device__ void load_groups(const Cache& cache, Box box, std::uint32_t to, std::uint32_t full) const {
    const bool found = box.block >= 0;
#pragma unroll 1
    for (int row = 0; row < params.box_rows; row += kGroupRows) {
      const int valid = found ? max(min(box.valid - row, kGroupRows), 0) : 0;
      const BoxStart at = box_of(cache.rows, {found ? box.block : 0, box.kv_head, box.token + row, valid});
#pragma unroll 1
      for (int slice = 0; slice < kSlices; ++slice, to += Config::kKeySliceStep) {
        const int column = slice * kSliceColumns;
        const CUtensorMap* inside = valid > 0 && column < cache.rows.columns ? &cache.rows.map : &cache.rows.beyond;
        tma_load(to, found ? inside : cache.outside, {column, at.row, at.slice, at.head, at.block}, full);
      }
    }
  }

  const Params& params;
  dense::Storage<Config>& storage;
  const int lane;
  const bool copies;
  PipelineState<kValues ? Config::kValueStages : Config::kKeyStages> position;
  bool started = false;
};

}  // namespace fovea::gpu::sm90::paged_attention
