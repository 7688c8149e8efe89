// SPDX-License-Identifier: Apache-2.0
/// The producer: one lane loads queries, keys and values into shared memory by TMA. Rows past the end of a
/// sequence are out of the bounds of their map, and so are zeros.
#pragma once

#include "gpu/cuda/sm100/attention/storage.cuh"
#include "gpu/cuda/sm100/attention/work.cuh"
#include "gpu/cuda/sm100/thread.cuh"
#include "gpu/cuda/sm100/tma.cuh"

namespace fovea::gpu::sm100::attention {

/// Rows of a head in a tensor: those of one tile, from `token` of the sequence on.
struct TileRows {
  int batch, head;
  int begin, length;  // of the sequence
  int token;
};

/// Loads a tile as slices of columns. Its bytes arrive at `full`.
template <class Config, int kSlices>
__device__ void load_rows(std::byte* to, const sm90::ClippedRows& rows, const TileRows& at, std::uint64_t& full) {
  barrier_arrive_expect_tx(full, kSlices * Config::kSliceTileBytes);
  const int valid = min(max(at.length - at.token, 0), kTileRows);
  BoxStart box{0, at.head * rows.head_step, rows.tile - valid, at.begin + at.token + valid, at.batch * rows.batch_step};
#pragma unroll
  for (int slice = 0; slice < kSlices; ++slice, box.column += Config::kSliceColumns) {
    const bool inside = valid > 0 && box.column < rows.columns;
    tma_load(to + slice * Config::kSliceTileBytes, inside ? &rows.map : &rows.beyond, box, full);
  }
}

template <class Config>
class Loader {
 public:
  __device__ Loader(const Params& params_, Storage<Config>& storage_, const WorkTile& work_)
      : params(params_), storage(storage_), work(work_) {}

  __device__ void operator()() {
    const int tiles = key_tiles(work);
    for (int number = 0; number < tiles; ++number) {
      if (number == 0) load_queries(0);
      load_keys_or_values<Config::kSlicesQk>(params.k, number);
      if (number == 0) load_queries(1);
      load_keys_or_values<Config::kSlicesV>(params.v, number);
    }
    // No MMA may arrive at a barrier when the CTA has ended.
    for (int stage = 0; stage < Config::kStages; ++stage, ring.advance()) wait_for_empty();
  }

 private:
  __device__ void load_queries(int tile) {
    const TileRows at{work.batch, work.head, work.q_begin, work.seq_q, work.token + tile * kTileRows};
    load_rows<Config, Config::kSlicesQk>(storage.q[tile], params.q, at, storage.q_full[tile]);
  }

  template <int kSlices>
  __device__ void load_keys_or_values(const sm90::ClippedRows& rows, int number) {
    wait_for_empty();
    const TileRows at{work.batch, work.head / params.heads_per_kv, work.k_begin, work.seq_k, key_tile(work, number) * kTileRows};
    load_rows<Config, kSlices>(storage.kv[ring.stage], rows, at, storage.kv_full[ring.stage]);
    ring.advance();
  }

  __device__ void wait_for_empty() { barrier_wait(storage.kv_empty[ring.stage], ring.parity ^ 1); }

  const Params& params;
  Storage<Config>& storage;
  const WorkTile& work;
  PipelineState<Config::kStages> ring;
};

}  // namespace fovea::gpu::sm100::attention
