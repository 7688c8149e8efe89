// SPDX-License-Identifier: Apache-2.0
/// The producers: a warp copies queries and the keys that the block table names into shared memory, and another one the values.
#pragma once

#include "gpu/cuda/sm90/clipped_rows.cuh"
#include "gpu/cuda/sm90/dense/storage.cuh"
#include "gpu/cuda/sm90/paged_attention/params.hpp"

namespace fovea::gpu::sm90::paged_attention {

/// By a whole warp: each lane copies the rows of a key tile that one page holds. Rows past the sequence are zeros, and so are pages that no
/// query row of the tile sees. A lane's copy takes some 80 clocks to issue, so keys and values have a warp each.
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
      if constexpr (kValues) {
        if (!done) load_values(work);
      } else {
        load_keys(work, buffer);
      }
    }
  }

 private:
  /// Where the lane's rows of a key tile are: `valid` of them, from a token of a block on. A block outside the cache is -1. Without any,
  /// the token is the one after the page's last, where boxes are out of bounds.
  struct Box {
    int block = 0, token = 0, valid = 0, kv_head = 0;
  };

  /// From the last key tile to the first, as the consumers take them: also from one work tile to the next. What says that all are done has
  /// a key tile out of bounds where consumers wait for one.
  __device__ void load_keys(const WorkTile& work, PipelineState<Config::kQueryBuffers> buffer) {
    const int last = work.done ? 1 : work.last, first = work.done ? 0 : work.first;
    Box next = find(work, last - 1);
    for (int tile = last - 1; tile >= first; --tile) {
      const Box box = next;
      if (tile > first) next = find(work, tile - 1);  // arrives while the stages are waited for
      // Nothing may be on its way when the CTA ends.
      if (!work.done || (started && Config::kOverlapWork)) load_keys(box);
      if (tile == last - 1) load_queries(work, buffer);
      started = true;
    }
  }
  __device__ void load_values(const WorkTile& work) {
    const int last = work.last, first = work.first;  // once the last copy is issued, another work tile may take this one's place
    Box next = find(work, last - 1);
    for (int tile = last - 1; tile >= first; --tile) {
      const Box box = next;
      if (tile > first) next = find(work, tile - 1);
      load_values(box);
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

  __device__ void load_queries(const WorkTile& work, PipelineState<Config::kQueryBuffers> buffer) {
    const std::uint32_t full = shared_address(&storage.q_full[buffer.stage]);
    barrier_wait(shared_address(&storage.q_empty[buffer.stage]), buffer.parity ^ 1);
    if (lane != 0) return;
    barrier_arrive_expect_tx(full, Config::kSlicesQk * Config::kQuerySliceBytes);
    const int tokens = Config::kRowTile >> params.packed_shift, valid = min(tokens, work.seq_q - work.token);
    load_clipped<Config::kSlicesQk>(shared_address(storage.q[buffer.stage]), Config::kQuerySliceBytes, params.q,
                                    {0, work.head, work.q_begin + work.token, valid}, full);
  }

  __device__ void load_keys(Box box) {
    const std::uint32_t full = begin(storage.k_full, storage.k_empty, Config::kKeyBytes);
    load_rows<Config::kSlicesQk>({params.k, params.k_pages, &params.outside}, box, shared_address(storage.k[position.stage]), full);
    position.advance();
  }
  __device__ void load_values(Box box) {
    const std::uint32_t full = begin(storage.v_full, storage.v_empty, Config::kValueBytes);
    load_rows<Config::kSlicesV>({params.v, params.v_pages, &params.v.beyond}, box, shared_address(storage.v[position.stage]), full);
    position.advance();
  }

  /// producer_acquire() of the warp.
  __device__ std::uint32_t begin(std::uint64_t* full_barriers, std::uint64_t* empty_barriers, int bytes) const {
    if (lane == 0) producer_acquire(position, full_barriers, empty_barriers, bytes);
    __syncwarp();
    return shared_address(full_barriers + position.stage);
  }

  struct Cache {
    const ClippedRows& rows;
    const PageBoxes& pages;
    const CUtensorMap* outside;  // of rows in no block
  };

  template <int kSlices>
  __device__ void load_rows(const Cache& cache, Box box, std::uint32_t to, std::uint32_t full) const {
    to += lane * params.box_rows * kSlices * kSliceBytes;
    const bool has_box = static_cast<unsigned>(box.block) < static_cast<unsigned>(cache.pages.blocks);
    const bool is_one = has_box && (box.valid == params.box_rows || box.valid == 0);
    if (copies && is_one) {
      const int column = box.kv_head * cache.pages.column_step, slice = box.kv_head * cache.pages.slice_step;
      tma_load(to, &cache.pages.map, {column, 0, slice, box.token / kGroupRows, box.block * cache.rows.batch_step}, full);
    } else if (copies) {
      load_groups<kSlices>(cache, box, to, full);
    }
    __syncwarp();
  }

  /// Rows that end inside of a page, that are in no block, or whose slices are not whole.
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
