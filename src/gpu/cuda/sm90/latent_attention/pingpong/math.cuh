// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. A 64 x 512 accumulator needs half of the register file, so two warpgroups split it by columns: warpgroup 0 has
/// columns [0, 256), warpgroup 1 the rest. Warpgroup 0 scores the even key tiles, warpgroup 1 the odd ones. Both multiply P of all tiles
/// with their half of V. The softmax of one runs beside MMAs of the other, and each half of a tile is released after its last reader.
#pragma once

#include "gpu/cuda/sm90/latent_attention/pingpong/row_state.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/pingpong/tile_pair.cuh"
#include "gpu/cuda/sm90/latent_attention/results.cuh"
#include "gpu/cuda/sm90/latent_attention/softmax.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

template <class Config>
struct Math {
  using Element = typename Config::Element;

  __device__ Math(const Params& params_, Storage<Config>& storage_, int half_)
      : params(params_), storage(storage_), half(half_), tiles(storage_, half_), rows(params_, storage_) {}

  __device__ __forceinline__ void operator()() {
    for (;;) {
      if constexpr (Config::kStages) tiles.clear_out();
      barrier_wait(shared_address(&storage.q_full), q_parity);
      const WorkTile& work = storage.work_tiles[q_parity];
      q_parity ^= 1;
      if (work.done()) {
        if constexpr (Config::kStages) tma_store_wait_read();
        return signal();
      }
      begin(work.sequence);
      if constexpr (Config::kStages) stages = params.tma_results && uniform((work.slot < 0) & (work.reduces == 0));
      const int first = uniform(work.begin), end = uniform(work.end);
      if (half == 0) {
        even_tiles(first, end);
      } else {
        odd_tiles(first, end);
      }
      finish(work);
    }
  }

 private:
  // ---- the two loops ------------------------------------------------------------------------------------------------------------

  /// Both loops go over pairs of tiles and compute O = O * rescale + P V for the even tile, then for the odd one. An MMA
  /// is in flight only where nothing else accesses `out`, and never across a branch, because ptxas serialises such MMAs.
  __device__ void even_tiles(int pair, int end) {
    tiles.start_scores(Even{});
    tiles.end_scores(Even{});
    release_staging();
    signal();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      even_tile(pair * kPair, first, last);
      tiles.parity ^= 1;
      if (last) break;
      ++pair;
      tiles.values_from_shared(Odd{}, shared_address(storage.p), kGroupBytes);
      tiles.start_scores(Even{});
      wgmma_wait<1>();
      fence_operand(tiles.out);
      tiles.release(Odd{}, Left{});
      tiles.end_scores(Even{});
      named_arrive(kEvenScored, kMathThreads);
    }
    tiles.values_from_shared(Odd{}, shared_address(storage.p), kGroupBytes);
    wgmma_wait<0>();
    fence_operand(tiles.out);
    if (!(Config::kStages && stages)) tiles.release(Odd{}, Left{});
  }

  __device__ void even_tile(int key, bool first, bool last) {
    wgmma_wait<0>();
    fence_operand(tiles.scores);
    if (last) release_queries();
    mask(Even{}, key);
    float largest[2], rescale[2], offset[2];
    find_largest(tiles.scores, largest);
    if (rows.grow_maximum(Even{}, first, tiles.scores, largest, rescale, offset) & !skips_first(first)) tiles.rescale_out(rescale);
    exponentiate(offset);
    if (last) rows.publish_sum(Even{});
    if (last) rows.publish_largest();
    hide_values(Even{}, key);
    named_sync(kWarpgroup, 128);  // every warp arrives once its scores are complete: their slice of K may become P
    store_probabilities(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
    fence_shared_for_async();
    named_arrive(kEvenReady, kMathThreads);
    tiles.values_from_registers(Even{});
    wgmma_wait<0>();
    fence_operand(tiles.out);
    tiles.release(Even{}, Left{});

    named_sync(kOddReady, kMathThreads);
    follow_maximum(Odd{}, false);
    if (last) rows.take_sum(Odd{});
    tiles.wait_full(Odd{}, Left{});
    hide_values(Odd{}, key + kKeyTile);
  }

  __device__ void odd_tiles(int pair, int end) {
    release_staging();
    tiles.start_scores(Odd{});
    if (!Config::kEvenFirst) tiles.end_scores(Odd{});
    signal();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      odd_tile(pair * kPair, first, last);
      tiles.parity ^= 1;
      if (last) break;
      ++pair;
      named_sync(kEvenScored, kMathThreads);  // at the same time, both scores would end late, and no softmax would overlap an MMA
      tiles.start_scores(Odd{});
      if (!Config::kEvenFirst) tiles.end_scores(Odd{});
    }
  }

  __device__ void odd_tile(int key, bool first, bool last) {
    if constexpr (Config::kEvenFirst) {
      tiles.continue_scores(Odd{});
      even_values(key, first, last);
      wgmma_wait<0>();
      fence_operand(tiles.out);
      tiles.release(Even{}, Right{});
      fence_operand(tiles.scores);
      tiles.finish_scores(Odd{});
    }
    wgmma_wait<0>();
    fence_operand(tiles.scores);
    if (last) release_queries();
    mask(Odd{}, key + kKeyTile);
    float largest[2], rescale[2], offset[2];
    find_largest(tiles.scores, largest);
    if constexpr (!Config::kEvenFirst) even_values(key, first, last);

    const bool grown = rows.grow_maximum(Odd{}, first, tiles.scores, largest, rescale, offset);
    exponentiate(offset);
    if (last) rows.publish_sum(Odd{});
    store_probabilities(shared_address(storage.p), kGroupBytes);
    fence_shared_for_async();
    named_arrive(kOddReady, kMathThreads);
    if constexpr (!Config::kEvenFirst) {
      wgmma_wait<0>();
      fence_operand(tiles.out);
      tiles.release(Even{}, Right{});
    }
    if (grown) tiles.rescale_out(rescale);
    hide_values(Odd{}, key + kKeyTile);
    tiles.values_from_registers(Odd{});
    wgmma_wait<0>();
    fence_operand(tiles.out);
    if (!(Config::kStages && (last & stages))) tiles.release(Odd{}, Right{});
  }

  __device__ void even_values(int key, bool first, bool last) {
    named_sync(kEvenReady, kMathThreads);
    if constexpr (Config::kEvenFirst) {  // complete by now, but no MMA may be in flight across the branch that rescales
      wgmma_wait<0>();
      fence_operand(tiles.scores);
    }
    follow_maximum(Even{}, skips_first(first));
    if (last) rows.add_sum(Even{});
    if (last) rows.take_largest();
    tiles.wait_full(Even{}, Right{});
    hide_values(Even{}, key);
    tiles.values_from_shared(Even{}, shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
  }

  // ---- a tile -------------------------------------------------------------------------------------------------------------------

  template <class Tile>
  __device__ void mask(Tile, int key) {
    const bool whole = sees_all(seen, key);
    uint2 bits{~0u, ~0u};  // one for each key
    // The lane that releases the tile reads them, so that checkers of single threads see the read before the release.
    if (Config::kGathered) load_shared_if(rows.lane() == 0, shared_address(storage.present[Tile::value]), bits);
    if (__all_sync(~0u, whole && (bits.x & bits.y) == ~0u)) return;
    const uint2 present{__shfl_sync(~0u, bits.x, 0), __shfl_sync(~0u, bits.y, 0)};
    mask_scores<Config::kGathered>(tiles.scores, seen, key, present, rows.lane());
  }

  __device__ void exponentiate(const float (&offset)[2]) {
    latent::exponentiate<Element>(tiles.scores, rows.scale_log2(), offset, rows.sum, tiles.probabilities);
  }

  /// `first`: this warpgroup has issued no MMA with values, so its accumulators are zeros.
  template <class Tile>
  __device__ void follow_maximum(Tile, bool first) {
    rows.follow_maximum(Tile{}, [&](const float(&rescale)[2]) {
      if (!first) tiles.rescale_out(rescale);
    });
  }

  /// Stores P for the other warpgroup: [group][8 rows][64 keys].
  __device__ void store_probabilities(std::uint32_t to, int group_bytes) {
    const int own = rows.lane(), row = rows.warp() * 16 + own % 16;
    store_swizzled_row<kKeyTile>(to + row / 8 * group_bytes + row % 8 * 128, row, 0, own, tiles.probabilities);
  }

  /// Hides values of keys that not all rows see, so that a probability of 0 meets no value that is not finite.
  template <class Tile>
  __device__ void hide_values(Tile, int key) {
    if (!Config::kEdges && Config::kGathered && Config::kCluster == 1)
      return;  // the loader has filled in zeros for keys that no row of the tile sees
    const detail::TileRange all = Config::kEdges ? seen_by_all : seen[0];
    if (key >= all.begin && key + kKeyTile <= all.end) return;
    const std::uint32_t values = tiles.own_half(Tile{});
    if constexpr (Config::kEdges) {
      const Sequence& sequence = storage.work_tiles[q_parity ^ 1].sequence;
      EdgeTile<Element>{values, half, key, visible_to(params, sequence, blockIdx.x, 1)}.hide();
    } else {
      EdgeTile<Element>{values, half, key, {all, all}}.clear();
    }
  }

  __device__ void release_queries() { barrier_arrive(shared_address(&storage.q_empty)); }

  // ---- a work tile --------------------------------------------------------------------------------------------------------------

  __device__ void begin(const Sequence& sequence) {
    if (Config::kEdges) seen_by_all = visible_to(params, sequence, blockIdx.x, 1).every;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.begin(r);
      seen[r] = Config::kStages && params.listed ? sequence.keys : seen_by(params, sequence, rows.first_row() + 8 * r);
    }
    if constexpr (!Config::kStages) tiles.clear_out();
  }

  /// Whether the first rescaling, of zeros, is left out. Quantised loads leave no register for the test.
  static __device__ bool skips_first(bool first) { return Config::kStages && first; }

  __device__ void finish(const WorkTile& work) {
    rows.reduce_sum();
    if constexpr (Config::kGathered) {
#pragma unroll
      for (float& x : rows.top) x = Warp::largest_of_row(x);
    }
    if (Config::kStages && stages) {
      named_sync(kWarpgroup + half, 128);  // every warp arrives once it has read this half of the odd tile
      results().store_by_tma(work.sequence, staging());
      staged = true;
      return;
    }
    if (work.slot >= 0) return results().store_partial(work.sequence, work.slot, [] {});
    if (uniform(work.reduces)) results().reduce(storage, uniform(work.ctas.end));
    results().store(work.sequence);
  }

  /// Half of the odd tile, through which a whole result is stored. It is released once TMA has read it, beside the next work tile's first
  /// scores.
  __device__ std::uint32_t staging() const { return tiles.own_half(Odd{}); }
  __device__ void release_staging() {
    if (!Config::kStages || !staged) return;
    tma_store_wait_read();
    __syncwarp();
    half == 0 ? tiles.release(Odd{}, Left{}) : tiles.release(Odd{}, Right{});
    staged = false;
  }

  /// Signals the last work tile's partial result to the CTA that reduces it, beside the next work tile's first scores.
  __device__ void signal() {
    const WorkTile& last = storage.work_tiles[q_parity];
    if (uniform(last.reduced)) results().signal(last.sequence, own_cta(params));
  }

  __device__ Results<Element> results() {
    return {params, tiles.out, rows.sum, rows.maximum, rows.top, rows.scale_log2(), half, Config::kGathered && half == 1};
  }

  const Params& params;
  Storage<Config>& storage;
  int half;                       // of the columns: the warpgroup
  detail::TileRange seen_by_all;  // keys that all rows of the tile see (kEdges; otherwise as any row)
  detail::TileRange seen[2];      // keys that this thread's two rows see
  bool stages = false;            // whether this work tile's result is stored through half of the odd tile
  bool staged = false;            // whether the last work tile's result may still be in flight from there
  std::uint32_t q_parity = 0;
  TilePair<Config> tiles;
  RowState<Config> rows;
};

}  // namespace fovea::gpu::sm90::latent
