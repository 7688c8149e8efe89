// SPDX-License-Identifier: Apache-2.0
/// The static order of a ragged batch: pairs of query tiles, then its last ones, longest first. TileOrder
/// (op/common/tile_order.hpp) is that of a batch of equal sequences.
#pragma once

#include <climits>

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/dense/ragged_sequence.cuh"

namespace fovea::gpu::sm90::dense {

/// The tail, found by a whole warp. The rank of a query tile is its level: the place of its last row
/// among the keys under a causal mask. A lane has the levels of one sequence.
class RaggedTail {
 public:
  /// The first sequence takes two lanes: one for the head some of whose pairs are dealt out already.
  static constexpr int kSequences = 31;

  /// The tail begins after `dealt` pairs of the first sequence. `tokens`: of a query tile.
  template <class Params>
  __device__ RaggedTail(const Params& params, int first_sequence, int dealt, int work_heads, int tokens) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    sequence = first_sequence + max(lane - 1, 0);
    if (sequence >= params.batch) return;
    const RaggedSequence lengths = sequence_at(params, sequence);
    const int q_tiles = (lengths.seq_q + tokens - 1) / tokens, pairs = (q_tiles + 1) / 2;
    const int partial = lane > 1 ? -1 : dealt / pairs, outer = lane == 0 ? dealt % pairs : 0;
    head = lane == 0 ? partial : partial + 1;
    heads = lane == 0 ? 1 : work_heads - head;
    base = max(lengths.seq_k - lengths.seq_q, 0) / tokens;
    begin = base + outer;
    end = base + q_tiles - outer;
  }

  /// The index-th query tile of the tail.
  __device__ RaggedPlace at(int index) const {
    int low = 0, high = __reduce_max_sync(~0u, end);
    if (index >= tiles_from(low)) return {0, detail::TileOrder::kEnd};
    while (high - low > 1) {
      const int middle = low + (high - low) / 2;
      (tiles_from(middle) > index ? low : high) = middle;
    }
    index -= tiles_from(low + 1);
    const int mine = low >= begin && low < end ? heads : 0, upto = Warp::inclusive_sum(mine);
    const int found = __ffs(static_cast<int>(__ballot_sync(~0u, index < upto))) - 1;
    const int its_head = __shfl_sync(~0u, head + index - (upto - mine), found), q_tile = __shfl_sync(~0u, low - base, found);
    return {__shfl_sync(~0u, sequence, found), {its_head, q_tile}};
  }

 private:
  /// Query tiles of all lanes, of this level and above.
  __device__ int tiles_from(int level) const { return __reduce_add_sync(~0u, heads * max(end - max(begin, level), 0)); }

  int sequence = 0;
  int head = 0, heads = 0;  // heads [head, head + heads)
  int base = 0;             // level of the first query tile
  int begin = 0, end = 0;   // levels of the remaining query tiles
};

/// Pairs of tiles in rounds, sequence by sequence, and the tail tile by tile, as TileOrder deals them out.
/// A cursor moves over the sequences, 32 at a time.
template <class Params>
class RaggedPairs {
 public:
  __device__ RaggedPairs(const Params& params_, int work_heads_, int tokens_, int ctas_)
      : params(params_), work_heads(work_heads_), tokens(tokens_), ctas(ctas_) {
    if (params.cu_seqlens_q != nullptr) find_tail();
  }

  /// The work of this CTA in its step-th turn.
  __device__ RaggedPlace at(int step) {
    const int cta = static_cast<int>(blockIdx.x), round = step - tail_step;
    if (round < 0) {
      const int index = step / 2 * ctas + cta;
      if (!seek(index)) return {0, detail::TileOrder::kEnd};
      const int q_tiles = query_tiles(sequence_at(params, batch).seq_q);
      return {batch, detail::TileOrder::of_pair(index - before, step % 2 == 1, q_tiles)};
    }
    const int dealt = tail_step / 2 * ctas;
    if (!seek(dealt)) return {0, detail::TileOrder::kEnd};
    const RaggedTail tail(params, batch, dealt - before, work_heads, tokens);
    return tail.at(round * ctas + (round % 2 == 0 ? cta : ctas - 1 - cta));
  }

 private:
  /// The tail is the last two or three rounds, unless the last one is nearly full: to find a place in the
  /// tail takes a microsecond. With more sequences than RaggedTail takes, each has so few tiles that
  /// pairs suffice.
  __device__ void find_tail() {
    int all = 0, last = 0;
    for (int index = static_cast<int>(threadIdx.x) % 32; index < params.batch; index += 32) {
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

  __device__ int query_tiles(int seq_q) const { return (seq_q + tokens - 1) / tokens; }
  __device__ int pairs(int sequence) const {
    if (sequence >= params.batch) return 0;
    return (query_tiles(sequence_at(params, sequence).seq_q) + 1) / 2 * work_heads;
  }

  /// Moves the cursor to the sequence of pair `index`. Returns false when there is none.
  __device__ bool seek(int index) {
    for (; batch < params.batch; batch += 32) {
      const int end = Warp::inclusive_sum(pairs(batch + static_cast<int>(threadIdx.x) % 32));  // last pair of this lane's sequence
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

  static constexpr int kNearlyFull = 64;  // the last round is: fewer than 1/64 of all pairs would be idle

  const Params& params;
  const int work_heads, tokens, ctas;
  int tail_step = INT_MAX;  // the step at which the tail begins
  int batch = 0;            // the cursor
  int before = 0;           // pairs of all sequences before the cursor
};

}  // namespace fovea::gpu::sm90::dense
