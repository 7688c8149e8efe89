// SPDX-License-Identifier: Apache-2.0
/// The work tiles of a persistent CTA of dense attention, in order, and the ring that hands them to its
/// other roles.
#pragma once

#include <type_traits>

#include "gpu/cuda/common/block_lists.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/cluster.cuh"
#include "gpu/cuda/sm90/dense/ragged_sections.cuh"
#include "gpu/cuda/sm90/dense/ragged_tail.cuh"

namespace fovea::gpu::sm90::dense {

inline constexpr int kWorkTiles = 3;       // stages of the ring
inline constexpr int kWarpgroupRows = 64;  // query rows of a consumer warpgroup

/// Finds the work tiles of this CTA, or cluster, one of `ctas`, by a whole warp. `Config` has kRowTile,
/// kKeyTile, kCluster, kTickets and kShortFirst.
template <class Config, class Params>
class TileScheduler {
 public:
  __device__ TileScheduler(const Params& params_, int ctas_) : params(params_), ctas(ctas_), ragged(params, work_heads(), tokens(), ctas) {}

  /// Returns the next work tile. After the last one, `done` is set.
  __device__ WorkTile next() {
    for (;; ++step) {
      WorkTile work{};
      const detail::TileOrder::Place at = params.cu_seqlens_q == nullptr ? next_of_batch(work) : next_of_ragged(work);
      if (at.head == detail::TileOrder::kNone.head) continue;
      work.done = at.head == detail::TileOrder::kEnd.head;
      if (work.done) {
        work.seq_q = work.seq_k = 0;  // its copies are out of bounds
      } else {
        place(work, at);
      }
      ++step;
      return work;
    }
  }

 private:
  using Ragged = std::conditional_t<Config::kTickets, RaggedSections<Params>, RaggedPairs<Params>>;

  __device__ detail::TileOrder::Place next_of_batch(WorkTile& work) const {
    work.seq_q = params.seq_q;
    work.seq_k = params.seq_k;
    const bool drawn = Config::kTickets && params.tickets.drawn != nullptr;
    detail::TileOrder::Place at = drawn ? params.sections.at(turn()) : params.order.at(number(), step);
    if (at.head < 0) return at;
    work.batch = at.head / work_heads();
    at.head -= work.batch * work_heads();
    return at;
  }

  __device__ detail::TileOrder::Place next_of_ragged(WorkTile& work) {
    const RaggedPlace place = ragged.at(Config::kTickets ? turn() : step);
    if (place.at.head < 0) return place.at;
    const RaggedSequence sequence = sequence_at(params, place.sequence);
    work.batch = place.sequence;
    work.q_begin = sequence.q_begin;
    work.k_begin = sequence.k_begin;
    work.seq_q = sequence.seq_q;
    work.seq_k = sequence.seq_k;
    return place.at;
  }

  /// Number of this CTA's next work tile among those of all. The first needs no ticket.
  __device__ int turn() const {
    if (step == 0 || params.tickets.drawn == nullptr) return step * ctas + number();
    int ticket = 0;
    if (threadIdx.x % 32 == 0) ticket = atomicAdd(params.tickets.drawn, 1);
    return ctas + __shfl_sync(~0u, ticket, 0);
  }

  /// Splits count as heads.
  __device__ int work_heads() const { return (params.heads >> params.packed_shift) * params.splits; }
  /// Tokens of a query tile of the order, and of the part that each CTA of a cluster has.
  __device__ int tokens() const { return Config::kCluster * own_tokens(); }
  __device__ int own_tokens() const { return Config::kRowTile >> params.packed_shift; }
  /// Number of this CTA, or of its cluster.
  static __device__ int number() { return static_cast<int>(blockIdx.x) / Config::kCluster; }

  __device__ void place(WorkTile& work, detail::TileOrder::Place at) const {
    work.split = at.head % params.splits;
    work.head = at.head / params.splits << params.packed_shift;
    work.token = at.q_tile * tokens();
    if constexpr (Config::kShortFirst) {
      place_rows(work, at.q_tile);
    } else {
      work.find_keys(params, Config::kRowTile, Config::kKeyTile);
    }
    if (params.splits > 1) work.keep_split(params.splits);
    if constexpr (requires { params.lists; }) {
      work.first = 0;
      work.last = ListedTiles(params.lists, work).count;
    }
    // Query tiles of a cluster see the same keys.
    if constexpr (Config::kCluster > 1) work.token += cluster_rank() * own_tokens();
    if (work.last > work.first) return;
    // No row sees a key. The tile has one key tile that is masked, so consumers need no other case.
    work.low = 1;
    work.high = 0;
    work.first = 0;
    work.last = work.full_first = work.full_last = 1;
  }

  /// Finds the keys of a query tile. Under a causal mask the warpgroups without rows are those of the first
  /// tile, which streams the fewest keys; `seq_q` is then the end of its rows.
  __device__ void place_rows(WorkTile& work, int q_tile) const {
    const int part = kWarpgroupRows >> params.packed_shift, parts = (work.seq_q + part - 1) / part;
    const bool causal = params.mask.left == kUnbounded && params.mask.right != kUnbounded;
    const int absent = causal ? (own_tokens() - parts % own_parts() * part) % own_tokens() : 0;
    const int rows = own_tokens() - (q_tile == 0 ? absent : 0);
    if (q_tile > 0) work.token -= absent;
    work.find_keys(params, rows << params.packed_shift, Config::kKeyTile);
    if (q_tile == 0) work.seq_q = min(work.seq_q, rows);
  }
  static constexpr int own_parts() { return Config::kRowTile / kWarpgroupRows; }

  const Params& params;
  const int ctas;
  int step = 0;
  Ragged ragged;
};

/// The scheduler warp, ahead of the producer: to find a work tile takes as long as to compute a key tile.
/// A ticket is drawn once its slot is free: drawn too early, a long tile would wait for its CTA.
/// `Storage` has the ring: work_tiles, work_full and work_empty. `ctas`: the first CTAs of the grid, or
/// clusters, which take work tiles.
template <class Config, class Params, class Storage>
__device__ void schedule_work_tiles(const Params& params, Storage& storage, int ctas = static_cast<int>(gridDim.x) / Config::kCluster) {
  TileScheduler<Config, Params> scheduler(params, ctas);
  PipelineState<kWorkTiles> at;
  for (bool done = false; !done; at.advance()) {
    if (threadIdx.x % 32 == 0) barrier_wait(shared_address(&storage.work_empty[at.stage]), at.parity ^ 1);
    __syncwarp();
    const WorkTile work = scheduler.next();
    done = work.done;
    if (threadIdx.x % 32 == 0) {
      storage.work_tiles[at.stage] = work;
      barrier_arrive(shared_address(&storage.work_full[at.stage]));
    }
    __syncwarp();
  }
}

}  // namespace fovea::gpu::sm90::dense
