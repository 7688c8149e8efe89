// SPDX-License-Identifier: Apache-2.0
/// The math warpgroups. A 64 x 512 accumulator needs half of the register file, so the two split it by columns: warpgroup 0 owns columns
/// [0, 256), warpgroup 1 the rest. Each scores every other key tile (0 the even ones, 1 the odd ones of the share), and both multiply the
/// probabilities of all tiles with their half of V. The order below lets one's softmax run beside the other's products, and gives each
/// quarter of a tile pair back to the loader as soon as its last reader is done.
#pragma once

#include "gpu/cuda/sm90/latent_attention/by_turns/edge.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/row_state.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/storage.cuh"
#include "gpu/cuda/sm90/latent_attention/by_turns/tile_pair.cuh"
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
      const Job& job = storage.jobs[q_parity];
      q_parity ^= 1;
      if (job.done()) {
        if constexpr (Config::kStages) stores_wait_read();
        return tell();
      }
      begin(job.request);
      if constexpr (Config::kStages) stages = params.store_boxes && uniform((job.slot < 0) & (job.collects == 0));
      const int first = uniform(job.begin), end = uniform(job.end);
      if (half == 0) {
        even_tiles(first, end);
      } else {
        odd_tiles(first, end);
      }
      finish(job);
    }
  }

 private:
  // ---- the two loops ------------------------------------------------------------------------------------------------------------

  /// Both go over pairs of an even and an odd tile, and both do O = O * rescale + P V for the even tile, then for the odd one. Between
  /// them a product whose accumulators are not waited for stands only where nothing else touches `out`: ptxas serialises the rest, and
  /// any product in a branch.
  __device__ void even_tiles(int pair, int end) {
    tiles.start_scores(Even{});
    tiles.end_scores(Even{});
    give_back_staging();
    tell();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      even_tile(pair * kPair, first, last);
      tiles.parity ^= 1;
      if (last) break;
      ++pair;
      tiles.values_from_shared(Odd{}, shared_address(storage.p), kGroupBytes);
      tiles.start_scores(Even{});
      products_wait<1>();
      pin(tiles.out);
      tiles.release(Odd{}, Left{});
      tiles.end_scores(Even{});
      named_arrive(kEvenScored, kMathThreads);
    }
    tiles.values_from_shared(Odd{}, shared_address(storage.p), kGroupBytes);
    products_wait<0>();
    pin(tiles.out);
    if (!(Config::kStages && stages)) tiles.release(Odd{}, Left{});
  }

  __device__ void even_tile(int key, bool first, bool last) {
    products_wait<0>();
    pin(tiles.scores);
    if (last) release_queries();
    mask(Even{}, key);
    float largest[2], rescale[2], offset[2];
    find_largest(tiles.scores, largest);
    if (rows.grow_maximum(Even{}, first, tiles.scores, largest, rescale, offset) & !skips_first(first)) tiles.rescale_out(rescale);
    exponentiate(offset);
    if (last) rows.publish_sum(Even{});
    if (last) rows.publish_largest();
    hide_values(Even{}, key);
    named_sync(kWarpgroup, 128);  // every warp's scores are done: their slice of K may become P
    store_probabilities(shared_address(storage.k[0]) + 8 * kGroupBytes, kKeyGroup);
    fence_shared_for_async();
    named_arrive(kEvenReady, kMathThreads);
    tiles.values_from_registers(Even{});
    products_wait<0>();
    pin(tiles.out);
    tiles.release(Even{}, Left{});

    named_sync(kOddReady, kMathThreads);
    follow_maximum(Odd{}, false);
    if (last) rows.take_sum(Odd{});
    tiles.wait_full(Odd{}, Left{});
    hide_values(Odd{}, key + kKeyTile);
  }

  __device__ void odd_tiles(int pair, int end) {
    give_back_staging();
    tiles.start_scores(Odd{});
    if (!Config::kEvenFirst) tiles.end_scores(Odd{});
    tell();
    for (bool first = true;; first = false) {
      const bool last = pair + 1 == end;
      odd_tile(pair * kPair, first, last);
      tiles.parity ^= 1;
      if (last) break;
      ++pair;
      named_sync(kEvenScored, kMathThreads);  // side by side, both would end late, and no softmax run beside a product
      tiles.start_scores(Odd{});
      if (!Config::kEvenFirst) tiles.end_scores(Odd{});
    }
  }

  __device__ void odd_tile(int key, bool first, bool last) {
    if constexpr (Config::kEvenFirst) {
      tiles.continue_scores(Odd{});
      even_values(key, first, last);
      products_wait<0>();
      pin(tiles.out);
      tiles.release(Even{}, Right{});
      pin(tiles.scores);
      tiles.finish_scores(Odd{});
    }
    products_wait<0>();
    pin(tiles.scores);
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
      products_wait<0>();
      pin(tiles.out);
      tiles.release(Even{}, Right{});
    }
    if (grown) tiles.rescale_out(rescale);
    hide_values(Odd{}, key + kKeyTile);
    tiles.values_from_registers(Odd{});
    products_wait<0>();
    pin(tiles.out);
    if (!(Config::kStages && (last & stages))) tiles.release(Odd{}, Right{});
  }

  __device__ void even_values(int key, bool first, bool last) {
    named_sync(kEvenReady, kMathThreads);
    if constexpr (Config::kEvenFirst) {  // long done; but rescaling, which not all warps do, may not have products beside it
      products_wait<0>();
      pin(tiles.scores);
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
    // By the lane that gives the tile back: then even a checker that knows no warps sees that this comes before.
    if (Config::kSingleKeys) load_shared_if(rows.lane() == 0, shared_address(storage.present[Tile::value]), bits);
    if (__all_sync(~0u, whole && (bits.x & bits.y) == ~0u)) return;
    const uint2 present{__shfl_sync(~0u, bits.x, 0), __shfl_sync(~0u, bits.y, 0)};
    mask_scores<Config::kSingleKeys>(tiles.scores, seen, key, present, rows.lane());
  }

  __device__ void exponentiate(const float (&offset)[2]) {
    latent::exponentiate<Element>(tiles.scores, rows.scale_log2(), offset, rows.sum, tiles.probabilities);
  }

  /// `first`: before this warpgroup's first MMA with values, whose accumulators are zeros.
  template <class Tile>
  __device__ void follow_maximum(Tile, bool first) {
    rows.follow_maximum(Tile{}, [&](const float(&rescale)[2]) {
      if (!first) tiles.rescale_out(rescale);
    });
  }

  /// P, for the other warpgroup.
  __device__ void store_probabilities(std::uint32_t to, int group_bytes) {
    const int own = rows.lane(), row = rows.warp() * 16 + own % 16;
    store_swizzled_row<kKeyTile>(to + row / 8 * group_bytes + row % 8 * 128, row, 0, own, tiles.probabilities);
  }

  /// Values of keys that not all rows see, so that a probability of 0 does not meet what is not finite.
  template <class Tile>
  __device__ void hide_values(Tile, int key) {
    if (!Config::kEdges && Config::kSingleKeys && Config::kCluster == 1) return;  // keys that no row of the tile sees come as zeros
    const detail::TileRange all = Config::kEdges ? seen_by_all : seen[0];
    if (key >= all.begin && key + kKeyTile <= all.end) return;
    const std::uint32_t values = tiles.own_half(Tile{});
    if constexpr (Config::kEdges) {
      const Request& request = storage.jobs[q_parity ^ 1].request;
      EdgeTile<Element>{values, half, key, visible_to(params, request, blockIdx.x, 1)}.hide();
    } else {
      EdgeTile<Element>{values, half, key, {all, all}}.clear();
    }
  }

  __device__ void release_queries() { barrier_arrive(shared_address(&storage.q_empty)); }

  // ---- a request ----------------------------------------------------------------------------------------------------------------

  __device__ void begin(const Request& request) {
    if (Config::kEdges) seen_by_all = visible_to(params, request, blockIdx.x, 1).every;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      rows.begin(r);
      seen[r] = Config::kStages && params.listed ? request.keys : seen_by(params, request, rows.first_row() + 8 * r);
    }
    if constexpr (!Config::kStages) tiles.clear_out();
  }

  /// Accumulators of zeros are not rescaled. Of codes, who decodes has no register left for the question.
  static __device__ bool skips_first(bool first) { return Config::kStages && first; }

  __device__ void finish(const Job& job) {
    rows.reduce_sum();
    if constexpr (Config::kSingleKeys) {
#pragma unroll
      for (float& x : rows.top) x = Warp::largest_of_row(x);
    }
    if (Config::kStages && stages) {
      named_sync(kWarpgroup + half, 128);  // every warp has read this half of the odd tile
      results().store_boxes(job.request, staging());
      staged = true;
      return;
    }
    if (job.slot >= 0) return results().store_partial(job.request, job.slot, [] {});
    if (uniform(job.collects)) results().collect(storage, uniform(job.parts.end));
    results().store(job.request);
  }

  /// Half of the odd tile, through which a whole result leaves. It goes back to the loader once the result has been read, which the next
  /// job's first scores need not wait for.
  __device__ std::uint32_t staging() const { return tiles.own_half(Odd{}); }
  __device__ void give_back_staging() {
    if (!Config::kStages || !staged) return;
    stores_wait_read();
    __syncwarp();
    half == 0 ? tiles.release(Odd{}, Left{}) : tiles.release(Odd{}, Right{});
    staged = false;
  }

  /// The last job's partial result is there, for a part that waits for it. Said while the first scores of the next are computed.
  __device__ void tell() {
    const Job& last = storage.jobs[q_parity];
    if (uniform(last.collected)) results().tell(last.request, own_part(params));
  }

  __device__ Results<Element> results() {
    return {params, tiles.out, rows.sum, rows.maximum, rows.top, rows.scale_log2(), half, Config::kSingleKeys && half == 1};
  }

  const Params& params;
  Storage<Config>& storage;
  int half;                       // of the columns: the warpgroup
  detail::TileRange seen_by_all;  // keys that all rows of the tile see (kEdges; otherwise as any row)
  detail::TileRange seen[2];      // keys that this thread's two rows see
  bool stages = false;            // whether this job's result leaves through half of the odd tile
  bool staged = false;            // whether the last one's may still be in flight through it
  std::uint32_t q_parity = 0;
  TilePair<Config> tiles;
  RowState<Config> rows;
};

}  // namespace fovea::gpu::sm90::latent
