// SPDX-License-Identifier: Apache-2.0
/// The order of tickets in a ragged batch: sequences with most keys first, and SectionOrder
/// (op/common/tile_order.hpp) in each.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/sm90/dense/ragged_sequence.cuh"

namespace fovea::gpu::sm90::dense {

/// Finds query tiles by a whole warp. A cursor moves over the sequences, 32 at a time, a lane for each.
template <class Params>
class RaggedSections {
 public:
  __device__ RaggedSections(const Params& params_, int work_heads_, int tokens_, int)
      : params(params_), work_heads(work_heads_), tokens(tokens_) {
    if (params.cu_seqlens_q != nullptr) load();
  }

  /// The index-th query tile. It never precedes that of an earlier call.
  __device__ RaggedPlace at(int index) {
    for (;;) {
      const unsigned reached = __ballot_sync(~0u, index < end);
      if (reached != 0) return of_lane(__ffs(static_cast<int>(reached)) - 1, index);
      first += 32;
      if (first >= params.batch) return {0, detail::TileOrder::kEnd};
      load();
    }
  }

 private:
  /// Sets the sequence of this lane and the number of tiles up to its end.
  __device__ void load() {
    const int before = __shfl_sync(~0u, end, 31), rank = first + static_cast<int>(threadIdx.x) % 32;
    int tiles = 0;
    if (rank < params.batch) {
      sequence = params.tickets.sequences != nullptr ? params.tickets.sequences[rank] : rank;
      tiles = query_tiles(sequence_at(params, sequence).seq_q) * work_heads;
    }
    end = before + Warp::inclusive_sum(tiles);
  }

  __device__ RaggedPlace of_lane(int lane, int index) const {
    const int found = __shfl_sync(~0u, sequence, lane), its_end = __shfl_sync(~0u, end, lane);
    const RaggedSequence lengths = sequence_at(params, found);
    const int q_tiles = query_tiles(lengths.seq_q), begin = its_end - q_tiles * work_heads;
    return {found, detail::SectionOrder(q_tiles, work_heads, section(lengths.seq_k)).at(index - begin)};
  }

  /// Work heads of a section: those of a power of two of kv heads.
  __device__ int section(int seq_k) const {
    const int of_kv_head = params.heads_per_kv >> params.packed_shift, kv_heads = work_heads / of_kv_head;
    const int fit = min(max(params.tickets.section_keys / max(seq_k, 1), 1), kv_heads);
    return of_kv_head << (31 - __clz(fit));
  }
  __device__ int query_tiles(int seq_q) const { return (seq_q + tokens - 1) / tokens; }

  const Params& params;
  const int work_heads, tokens;
  int first = 0;     // rank of the first lane's sequence
  int sequence = 0;  // of this lane
  int end = 0;       // tiles of all sequences up to this lane's
};

}  // namespace fovea::gpu::sm90::dense
