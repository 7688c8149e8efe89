// SPDX-License-Identifier: Apache-2.0
/// Sequences and their visible keys, the work tiles of a CTA, and rows of its query tile.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "op/common/band.hpp"
#include "op/common/split_schedule.hpp"

namespace fovea::gpu::sm90::latent {

/// A sequence and its bounds.
struct Sequence {
  int index = 0;                // in the schedule
  int batch = 0;                // index into the tensors: 0 when they are ragged
  int q_begin = 0, q_rows = 0;  // tokens; q_begin counts from the first row of the batch
  int kv_len = 0;
  int main_len = 0;  // with listed tokens: length of the first list
  detail::Band band{};
  detail::TileRange keys{};  // keys that some row sees

  __device__ int extra_begin() const { return extra_list_begin(main_len); }  // with listed tokens
  __device__ int first_pair() const { return keys.begin / kPair; }
  /// At least one: a row that sees nothing is written too.
  __device__ int pairs() const { return max((keys.end + kPair - 1) / kPair - first_pair(), 1); }
};

__device__ inline int list_length(const RowCache& cache, int at) {
  return cache.lengths == nullptr ? cache.topk : max(min(cache.lengths[at], cache.topk), 0);
}

/// A query token and the keys that it lists: those of the main cache, then, from the next key tile on, those of the extra one.
__device__ inline Sequence listed_sequence(const Params& params, int index) {
  Sequence sequence{.index = index, .batch = params.seq_q.quotient(index), .q_rows = 1};
  sequence.q_begin = index - sequence.batch * params.seq_q.divisor;
  const int at = params.length_per_row ? sequence.q_begin : sequence.batch;
  const int extra = list_length(params.extra, at);
  sequence.main_len = list_length(params.main, at);
  sequence.kv_len = extra > 0 ? sequence.extra_begin() + extra : sequence.main_len;
  sequence.band = detail::make_band({}, 1, sequence.kv_len);
  sequence.keys = {0, sequence.kv_len};
  return sequence;
}

__device__ inline detail::TileRange narrowed(const detail::KeyRange& keys) {
  return {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
}

__device__ inline Sequence sequence_at(const Params& params, int index) {
  if (params.listed) return listed_sequence(params, index);
  Sequence sequence{.index = index, .batch = params.cu_seqlens_q != nullptr ? 0 : index, .q_rows = params.seq_q.divisor};
  if (params.cu_seqlens_q != nullptr) {
    sequence.q_begin = params.cu_seqlens_q[index];
    sequence.q_rows = max(min(params.cu_seqlens_q[index + 1] - sequence.q_begin, params.seq_q.divisor), 0);
  }
  sequence.kv_len = max(min(params.kv_len[index], params.max_kv_len), 0);
  sequence.band = detail::make_band(params.mask, sequence.q_rows, sequence.kv_len);
  if (sequence.q_rows > 0) sequence.keys = narrowed(detail::keys_seen_by_some(sequence.band, 0, sequence.q_rows, sequence.kv_len));
  return sequence;
}

__device__ inline detail::SplitSchedule schedule_of(const Params& params) {
  return {.prefix = params.prefix,
          .batch = params.batch,
          .length = params.prefix[params.batch + 1],
          .overhead = params.prefix[params.batch + 2],
          .whole = params.whole};
}

/// Keys that some rows of a range see, and keys that every row of it sees. Rows past the last token do not count.
struct Visible {
  detail::TileRange some, every;
};

/// Visible keys of the rows of `tiles` query tiles, from the first_tile-th on.
__device__ inline Visible visible_to(const Params& params, const Sequence& sequence, int first_tile, int tiles) {
  const int first = params.heads_per_kv.quotient(first_tile * kQueryTile);
  const int last = min(params.heads_per_kv.quotient((first_tile + tiles) * kQueryTile - 1), sequence.q_rows - 1);
  if (first > last) return {{}, {0, kKeyLimit}};
  const detail::TileRange some = narrowed(detail::keys_seen_by_some(sequence.band, first, last + 1, sequence.kv_len));
  if (first == last) return {some, some};
  // Neither bound decreases from a row to the next.
  const detail::TileRange upper = narrowed(detail::keys_seen_by(sequence.band, first, sequence.kv_len));
  const detail::TileRange lower = narrowed(detail::keys_seen_by(sequence.band, last, sequence.kv_len));
  return {some, {lower.begin, upper.end}};
}

/// Keys that a row of this CTA's query tile sees. Rows past the last token see the keys of the last.
__device__ inline detail::TileRange seen_by(const Params& params, const Sequence& sequence, int row) {
  const int token = max(min(params.heads_per_kv.quotient(blockIdx.x * kQueryTile + row), sequence.q_rows - 1), 0);
  return narrowed(detail::keys_seen_by(sequence.band, token, sequence.kv_len));
}

/// One sequence and pairs [begin, end) of its key tiles. The schedule deals consecutive work tiles to each CTA of a query tile.
struct alignas(16) WorkTile {
  Sequence sequence{.index = -1};
  int begin = 0, end = 0;
  detail::TileRange ctas;  // CTAs that have splits of the sequence; empty until place() sets this and the next three
  int slot = -1;           // of the partial result; -1: this CTA writes the result of the sequence
  int reduces = 0;         // 1: this CTA reduces the other CTAs' partial results
  int reduced = 0;         // 1: the CTA of the first split reduces this partial result
  int unused = 0;          // pads to the 16 bytes of a load

  __device__ bool done() const { return sequence.index < 0; }

  // Only schedules of lists may be even. Kernels without lists compile no code for even schedules: `lists` is a constant.

  /// First work tile of a CTA. All loads are issued at once; a compiler would issue the rest after a test of the first word.
  static __device__ WorkTile first_of(const Params& params, int cta, bool lists) {
    if (lists && params.even.size > 0) return even_share(params.even.first_sequence(cta), params, cta);
    WorkTile work;
    load_at_once(params.first_work + cta, work);
    return work;
  }
  /// Work tile after this one.
  __device__ WorkTile next(const Params& params, int cta, bool lists) const {
    const int index = sequence.index + 1;
    return lists && params.even.size > 0 ? even_share(index, params, cta) : from(index, params, schedule_of(params), cta);
  }

  /// Key tiles, without the half of a pair that holds no visible key.
  __device__ int tiles() const { return max(min(2 * end, (sequence.keys.end + kKeyTile - 1) / kKeyTile) - 2 * begin, 1); }

  /// First work tile of `cta` among the sequences from the index-th on; done() if it has none.
  static __device__ WorkTile from(int index, const Params& params, const detail::SplitSchedule& schedule, int cta) {
    for (;; ++index) {
      const Sequence sequence = sequence_at(params, min(index, params.batch - 1));  // its loads overlap those of the schedule
      if (schedule.past(cta, index)) return {};
      const detail::TileRange share = schedule.share(cta, index);
      if (share.empty()) continue;
      const int first = sequence.first_pair();
      return {sequence, first + share.begin, first + share.end};
    }
  }
  /// Work tile of `cta` in the index-th sequence of an even schedule, with its place; done() if it has none.
  static __device__ WorkTile even_share(int index, const Params& params, int cta) {
    const detail::TileRange share = params.even.share(cta, index);
    if (index >= params.batch || share.empty()) return {};
    WorkTile work{listed_sequence(params, index), share.begin, share.end, params.even.parts_of(cta, index)};
    if (params.even.shares > 1) work.slot = detail::SplitSchedule::slot(cta, share.begin > 0);
    return work;
  }

  /// Finds where the result goes. Load warps lack the registers to do this in from().
  __device__ void place(const detail::SplitSchedule& schedule, int cta) {
    if (done() || !ctas.empty()) return;
    ctas = schedule.parts_of(sequence.index);
    const bool begins = cta == ctas.begin, some_reduce = schedule.reduced(ctas);
    reduces = begins && some_reduce;
    reduced = !begins && some_reduce;
    slot = !begins || schedule.combined(ctas) ? schedule.slot(cta, !begins) : -1;
  }
  __device__ void place(const Params& params, int cta, bool lists) {
    if (!lists || params.even.size == 0) place(schedule_of(params), cta);  // an even schedule lies in no memory
  }
};

/// Index of this CTA in the schedule. The last ones start first, because others wait for them.
__device__ inline int own_cta(const Params& params) { return params.ctas - 1 - static_cast<int>(blockIdx.z); }

/// Flags of another CTA of this query tile: [math warp].
__device__ inline int* ready_flags(const Params& params, int cta) {
  return params.partial_ready + ((cta * params.kv_heads + blockIdx.y) * params.query_tiles + blockIdx.x) * kMathWarps;
}

/// Query token and head of a row of the sequence's query tiles.
struct PackedRow {
  int token;
  std::uint32_t head;

  __device__ PackedRow(const Params& params, std::uint32_t kv_head, int packed)
      : token(params.heads_per_kv.quotient(packed)),
        head(kv_head * params.heads_per_kv.divisor + (packed - token * params.heads_per_kv.divisor)) {}

  /// Offset of this row in a tensor [batch][row][head].
  __device__ std::int64_t offset(const Sequence& sequence, const detail::RowStrides& strides) const {
    const std::int64_t row = sequence.q_begin + token;
    return sequence.batch * strides.batch + row * strides.row + head * strides.head;
  }
};

/// Query row behind a row of the sequence's query tiles, or null past the last.
template <class Element>
__device__ inline const Element* query_row(const Params& params, const Sequence& sequence, int packed) {
  const PackedRow row(params, blockIdx.y, packed);
  if (row.token >= sequence.q_rows) return nullptr;
  return static_cast<const Element*>(params.q) + row.offset(sequence, params.q_strides);
}

/// Whether a math warp has valid rows. Only such warps store and load partial results.
__device__ inline bool has_rows(const Params& params, const Sequence& sequence, int query_tile, int warp) {
  return query_tile * kQueryTile + warp % 4 * kMathWarpRows < sequence.q_rows * params.heads_per_kv.divisor;
}

}  // namespace fovea::gpu::sm90::latent
