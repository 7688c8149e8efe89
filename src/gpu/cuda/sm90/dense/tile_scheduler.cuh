// SPDX-License-Identifier: Apache-2.0
/// The work tiles of a persistent CTA of dense attention, in order, and the ring that hands them to its
/// other roles.
#pragma once

#include <climits>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/dense/ragged_tail.cuh"

namespace fovea::gpu::sm90::dense {

inline constexpr int kWorkTiles = 4;  // stages of the ring

/// Finds the work tiles of this CTA, one of `ctas`, by a whole warp. In a ragged batch, a cursor moves
/// over the sequences, 32 at a time. `Config` has kRowTile and kKeyTile.
template <class Config, class Params>
class TileScheduler {
 public:
  __device__ TileScheduler(const Params& params_, int ctas_) : params(params_), ctas(ctas_), lane(threadIdx.x % 32) {
    if (params.cu_seqlens_q != nullptr) find_tail();
  }

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
  __device__ detail::TileOrder::Place next_of_batch(WorkTile& work) const {
    work.seq_q = params.seq_q;
    work.seq_k = params.seq_k;
    detail::TileOrder::Place at = params.order.at(static_cast<int>(blockIdx.x), step);
    if (at.head < 0) return at;
    work.batch = at.head / work_heads();
    at.head -= work.batch * work_heads();
    return at;
  }

  /// Deals out pairs of tiles in rounds, sequence by sequence, and the tail tile by tile, as TileOrder
  /// does.
  __device__ detail::TileOrder::Place next_of_ragged(WorkTile& work) {
    const int cta = static_cast<int>(blockIdx.x), round = step - tail_step;
    if (round < 0) {
      const int index = step / 2 * ctas + cta;
      if (!seek(index)) return detail::TileOrder::kEnd;
      set_sequence(work, batch);
      return detail::TileOrder::of_pair(index - before, step % 2 == 1, query_tiles(work.seq_q));
    }
    const int dealt = tail_step / 2 * ctas;
    if (!seek(dealt)) return detail::TileOrder::kEnd;
    const RaggedTail tail(params, batch, dealt - before, work_heads(), tokens());
    const RaggedTail::Place place = tail.at(round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta));
    if (place.at.head >= 0) set_sequence(work, place.sequence);
    return place.at;
  }

  __device__ void set_sequence(WorkTile& work, int index) const {
    const RaggedSequence sequence = sequence_at(params, index);
    work.batch = index;
    work.q_begin = sequence.q_begin;
    work.k_begin = sequence.k_begin;
    work.seq_q = sequence.seq_q;
    work.seq_k = sequence.seq_k;
  }

  /// The tail is the last two or three rounds, unless the last one is nearly full: to find a place in the
  /// tail takes a microsecond. With more sequences than RaggedTail takes, each has so few tiles that
  /// pairs suffice.
  __device__ void find_tail() {
    int all = 0, last = 0;
    for (int index = lane; index < params.batch; index += 32) {
      const int of_sequence = pairs(index);
      if (of_sequence > 0) last = index;
      all += of_sequence;
    }
    all = __reduce_add_sync(~0u, all);
    const int full = all / ctas, idle = full * ctas == all ? 0 : (full + 1) * ctas - all;
    if (kNearlyFull * idle <= all) return;
    const int rounds = max(full - 2, 0);
    if (params.batch > RaggedTail::kSequences) {
      seek(rounds * ctas);
      last = __reduce_max_sync(~0u, last);
      if (last - batch < RaggedTail::kSequences) tail_step = 2 * rounds;
      batch = before = 0;
    } else {
      tail_step = 2 * rounds;
    }
  }

  /// Splits count as heads.
  __device__ int work_heads() const { return (params.heads >> params.packed_shift) * params.splits; }
  /// Tokens of a query tile.
  __device__ int tokens() const { return Config::kRowTile >> params.packed_shift; }
  __device__ int query_tiles(int seq_q) const { return (seq_q + tokens() - 1) / tokens(); }
  __device__ int pairs(int sequence) const {
    if (sequence >= params.batch) return 0;
    return (query_tiles(sequence_at(params, sequence).seq_q) + 1) / 2 * work_heads();
  }

  /// Moves the cursor to the sequence of pair `index`. Returns false when there is none.
  __device__ bool seek(int index) {
    for (; batch < params.batch; batch += 32) {
      const int end = Warp::inclusive_sum(pairs(batch + lane));  // last pair of this lane's sequence
      const unsigned reached = __ballot_sync(~0u, index < before + end);
      const int found = reached != 0 ? __ffs(static_cast<int>(reached)) - 1 : 32;
      const int passed = __shfl_sync(~0u, end, found == 0 ? 0 : found - 1);
      if (found > 0) before += passed;
      if (reached != 0) {
        batch += found;
        return true;
      }
    }
    return false;
  }

  __device__ void place(WorkTile& work, detail::TileOrder::Place at) const {
    work.split = at.head % params.splits;
    work.head = at.head / params.splits << params.packed_shift;
    work.token = at.q_tile * tokens();
    work.find_keys(params, Config::kRowTile, Config::kKeyTile);
    if (params.splits > 1) work.keep_split(params.splits);
    if (work.last > work.first) return;
    // No row sees a key. The tile has one key tile that is masked, so consumers need no other case.
    work.low = 1;
    work.high = 0;
    work.first = 0;
    work.last = work.full_first = work.full_last = 1;
  }

  static constexpr int kNearlyFull = 64;  // the last round is: fewer than 1/64 of all pairs would be idle

  const Params& params;
  const int ctas, lane;
  int step = 0;
  int tail_step = INT_MAX;  // the step at which a ragged batch's tail begins
  int batch = 0;            // the cursor
  int before = 0;           // pairs of all sequences before the cursor
};

/// The scheduler warp, ahead of the producer: to find a work tile takes as long as to compute a key tile.
/// `Storage` has the ring: work_tiles, work_full and work_empty. `ctas`: the first CTAs of the grid, which
/// take work tiles.
template <class Config, class Params, class Storage>
__device__ void schedule_work_tiles(const Params& params, Storage& storage, int ctas = static_cast<int>(gridDim.x)) {
  TileScheduler<Config, Params> scheduler(params, ctas);
  PipelineState<kWorkTiles> at;
  for (bool done = false; !done; at.advance()) {
    const WorkTile work = scheduler.next();
    done = work.done;
    if (threadIdx.x % 32 == 0) {
      barrier_wait(shared_address(&storage.work_empty[at.stage]), at.parity ^ 1);
      storage.work_tiles[at.stage] = work;
      barrier_arrive(shared_address(&storage.work_full[at.stage]));
    }
    __syncwarp();
  }
}

}  // namespace fovea::gpu::sm90::dense
