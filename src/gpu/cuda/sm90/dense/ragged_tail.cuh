// SPDX-License-Identifier: Apache-2.0
/// Sequences of a ragged batch, and its last query tiles, longest first. TileOrder
/// (op/common/tile_order.hpp) has the last tiles of a batch of equal sequences.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "op/common/tile_order.hpp"

namespace fovea::gpu::sm90::dense {

/// The beginning of a sequence in its tensors, and its lengths.
struct RaggedSequence {
  int q_begin, k_begin, seq_q, seq_k;
};
/// Overloaded for paged attention.
template <class Params>
__device__ RaggedSequence sequence_at(const Params& params, int index) {
  return {params.cu_seqlens_q[index], params.cu_seqlens_k[index], sequence_length(params.cu_seqlens_q, index, params.seq_q),
          sequence_length(params.cu_seqlens_k, index, params.seq_k)};
}

/// The tail, found by a whole warp. The rank of a query tile is its level: the place of its last row
/// among the keys under a causal mask. A lane has the levels of one sequence.
class RaggedTail {
 public:
  /// The first sequence takes two lanes: one for the head some of whose pairs are dealt out already.
  static constexpr int kSequences = 31;

  struct Place {
    int sequence;
    detail::TileOrder::Place at;
  };

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
  __device__ Place at(int index) const {
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

}  // namespace fovea::gpu::sm90::dense
