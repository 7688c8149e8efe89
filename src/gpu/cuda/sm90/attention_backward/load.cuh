// SPDX-License-Identifier: Apache-2.0
/// The producer: one lane loads keys and values once, then queries, dout and their RowStats for each step.
#pragma once

#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"

namespace fovea::gpu::sm90::attention_backward {

template <class Config>
__device__ inline void load_tiles(const Params& params, Storage<Config>& storage) {
  const KeyTile& tile = storage.tile;
  const Sequence& at = tile.sequence;
  const TilePlace keys{at.batch, tile.kv_head, at.k_begin + tile.begin, min(Config::kKeyTile, at.seq_k - tile.begin)};
  const std::uint32_t kv_full = shared_address(&storage.kv_full);
  barrier_arrive_expect_tx(kv_full, Config::kKeyBytes + Config::kValueBytes);
  load_clipped<Config::kSlicesQk>(shared_address(storage.k), Config::kKeySliceBytes, params.k, keys, kv_full);
  load_clipped<Config::kSlicesV>(shared_address(storage.v), Config::kKeySliceBytes, params.v, keys, kv_full);

  const detail::GradientOrder order = order_of(params, at, Config::kKeyTile);
  const int count = order.query_tiles_of(tile.index).size();
  PipelineState<Config::kStages> ring;
  int head = tile.kv_head * params.heads_per_kv, step = 0;
  for (int i = 0; i < storage.step_count; ++i, ring.advance()) {
    const int query_tile = order.query_tile_at(tile.index, step);
    const int token = query_tile * kQueryTile, cell = head * params.query_tiles + at.query_tile + query_tile;
    const TilePlace queries{at.batch, head, at.q_begin + token, min(kQueryTile, at.seq_q - token)};
    const std::uint32_t q_full = shared_address(&storage.q_full[ring.stage]), dout_full = shared_address(&storage.dout_full[ring.stage]);
    barrier_wait(shared_address(&storage.empty[ring.stage]), ring.parity ^ 1);
    const int rank = order.rank(tile.index, query_tile);
    storage.steps[i % Storage<Config>::kSteps] = {head, query_tile, cell, rank, rank == order.key_tiles_of(query_tile).size() - 1};
    barrier_arrive_expect_tx(q_full, Config::kQueryBytes + sizeof(RowStats));
    load_clipped<Config::kSlicesQk>(shared_address(storage.q[ring.stage]), Config::kQuerySliceBytes, params.q, queries, q_full);
    bulk_load(shared_address(&storage.stats[ring.stage]), params.stats + cell, sizeof(RowStats), q_full);
    barrier_arrive_expect_tx(dout_full, Config::kDoutBytes);
    load_clipped<Config::kSlicesV>(shared_address(storage.dout[ring.stage]), Config::kQuerySliceBytes, params.dout, queries, dout_full);
    if (++step == count) {
      step = 0;
      ++head;
    }
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
