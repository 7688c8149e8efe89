// SPDX-License-Identifier: Apache-2.0
/// The producer: one lane loads keys and values once, then queries, dout and their RowStats for each step.
#pragma once

#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/sm90/attention_backward/alibi/bias.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// The steps of a key tile within the band: all query tiles of a head, then those of the next one.
template <class Config>
class StepScheduler {
 public:
  __device__ StepScheduler(const Params& params_, const KeyTile& tile_)
      : params(params_),
        tile(tile_),
        order(order_of(params_, tile_.sequence, Config::kKeyTile)),
        head(tile_.kv_head * params_.heads_per_kv) {
    count = order.query_tiles_of(tile.index).size();
  }
  __device__ Step next() {
    const int query_tile = order.query_tile_at(tile.index, step), of_head = head;
    if (++step == count) {
      step = 0;
      ++head;
    }
    const int rank = order.rank(tile.index, query_tile);
    return {of_head, query_tile, of_head * params.query_tiles + tile.sequence.query_tile + query_tile, rank,
            rank == order.key_tiles_of(query_tile).size() - 1};
  }

 private:
  const Params& params;
  const KeyTile& tile;
  const detail::GradientOrder order;
  int count, head, step = 0;
};

/// The steps of a key tile that a block mask lists.
class ListedStepScheduler {
 public:
  template <class Params>
  __device__ ListedStepScheduler(const Params& params, const KeyTile& tile_)
      : lists(params.lists),
        tile(tile_),
        query_tiles(params.query_tiles),
        scheduler(params.lists, tile_.sequence.batch, tile_.kv_head * params.heads_per_kv, params.heads_per_kv, tile_.index) {}
  __device__ ListedTileStep next() {
    const auto [head, now] = scheduler.next();
    const int batch = tile.sequence.batch;
    const int cell = head * query_tiles + tile.sequence.query_tile + now.query_tile;
    ListedTileStep step{{head, now.query_tile, cell, now.rank(), now.is_last()}, 0, {}};
#pragma unroll
    for (int unit = 0; unit < 2; ++unit) {
      const int slot = now.slots[unit];
      if (slot == kNotListed) continue;
      step.listed |= 1u << unit;
      if (slot == kFullBlock) continue;
      step.bits[unit] = lists.bits(batch, head, now.query_tile * kQueryTile, tile.begin + unit * kUnitKeys, slot);
    }
    return step;
  }

 private:
  const GradientLists& lists;
  const KeyTile& tile;
  const int query_tiles;
  ListedTileScheduler scheduler;
};

template <class Config>
using DenseSteps = std::conditional_t<dense::kAlibi<Config>, SlopedSteps<StepScheduler<Config>>, StepScheduler<Config>>;

/// Steps of a key tile.
template <class Config>
__device__ inline int step_count_of(const typename Config::Params& params, const KeyTile& tile) {
  if constexpr (Config::kLists) {
    if (tile.none) return 0;
    return ListedTileScheduler::count(params.lists, tile.sequence.batch, tile.kv_head * params.heads_per_kv, params.heads_per_kv,
                                      tile.index);
  } else {
    return params.heads_per_kv * order_of(params, tile.sequence, Config::kKeyTile).query_tiles_of(tile.index).size();
  }
}

template <class Config>
__device__ inline void load_tiles(const typename Config::Params& params, Storage<Config>& storage) {
  const KeyTile& tile = storage.tile;
  const Sequence& at = tile.sequence;
  const TilePlace keys{at.batch, tile.kv_head, at.k_begin + tile.begin, min(Config::kKeyTile, at.seq_k - tile.begin)};
  const std::uint32_t kv_full = shared_address(&storage.kv_full);
  barrier_arrive_expect_tx(kv_full, Config::kKeyBytes + Config::kValueBytes);
  load_clipped<Config::kSlicesQk>(shared_address(storage.k), Config::kKeySliceBytes, params.k, keys, kv_full);
  load_clipped<Config::kSlicesV>(shared_address(storage.v), Config::kKeySliceBytes, params.v, keys, kv_full);

  std::conditional_t<Config::kLists, ListedStepScheduler, DenseSteps<Config>> scheduler(params, tile);
  PipelineState<Config::kStages> ring;
  for (int i = 0; i < storage.step_count; ++i, ring.advance()) {
    const StepOf<Config> step = scheduler.next();
    const int token = step.query_tile * kQueryTile;
    const TilePlace queries{at.batch, step.head, at.q_begin + token, min(kQueryTile, at.seq_q - token)};
    const std::uint32_t q_full = shared_address(&storage.q_full[ring.stage]), dout_full = shared_address(&storage.dout_full[ring.stage]);
    barrier_wait(shared_address(&storage.empty[ring.stage]), ring.parity ^ 1);
    storage.steps[i % Storage<Config>::kSteps] = step;
    barrier_arrive_expect_tx(q_full, Config::kQueryBytes + sizeof(RowStats));
    load_clipped<Config::kSlicesQk>(shared_address(storage.q[ring.stage]), Config::kQuerySliceBytes, params.q, queries, q_full);
    bulk_load(shared_address(&storage.stats[ring.stage]), params.stats + step.cell, sizeof(RowStats), q_full);
    barrier_arrive_expect_tx(dout_full, Config::kDoutBytes);
    load_clipped<Config::kSlicesV>(shared_address(storage.dout[ring.stage]), Config::kQuerySliceBytes, params.dout, queries, dout_full);
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
