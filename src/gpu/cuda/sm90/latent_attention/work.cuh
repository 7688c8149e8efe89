// SPDX-License-Identifier: Apache-2.0
/// What a CTA does, request by request.
#pragma once

#include "gpu/cuda/sm90/global_memory.cuh"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/cuda/sm90/latent_attention/params.hpp"
#include "op/common/band.hpp"
#include "op/common/split_schedule.hpp"

namespace fovea::gpu::sm90::latent {

/// One request's bounds.
struct Request {
  int index = 0;                // in the schedule
  int batch = 0;                // of the tensors: 0 when they are ragged
  int q_begin = 0, q_rows = 0;  // tokens; q_begin counts from the first row of the batch
  int kv_len = 0;
  int main_len = 0;  // listed: the length of the first list
  detail::Band band{};
  detail::TileRange keys{};  // that some row sees

  __device__ int extra_begin() const { return extra_list_begin(main_len); }  // where tokens are listed
  __device__ int first_pair() const { return keys.begin / kPair; }
  /// At least one: a row that sees nothing is written too.
  __device__ int pairs() const { return max((keys.end + kPair - 1) / kPair - first_pair(), 1); }
};

__device__ inline int list_length(const RowCache& cache, int at) {
  return cache.lengths == nullptr ? cache.topk : max(min(cache.lengths[at], cache.topk), 0);
}

/// One query token and the keys that it lists: those of the main cache, then, from a tile's begin on, those of the extra one.
__device__ inline Request listed_request(const Params& params, int index) {
  Request request{.index = index, .batch = params.seq_q.quotient(index), .q_rows = 1};
  request.q_begin = index - request.batch * params.seq_q.divisor;
  const int at = params.length_per_row ? request.q_begin : request.batch;
  const int extra = list_length(params.extra, at);
  request.main_len = list_length(params.main, at);
  request.kv_len = extra > 0 ? request.extra_begin() + extra : request.main_len;
  request.band = detail::make_band({}, 1, request.kv_len);
  request.keys = {0, request.kv_len};
  return request;
}

__device__ inline Request request_at(const Params& params, int index) {
  if (params.listed) return listed_request(params, index);
  Request request{.index = index, .batch = params.cu_seqlens_q != nullptr ? 0 : index, .q_rows = params.seq_q.divisor};
  if (params.cu_seqlens_q != nullptr) {
    request.q_begin = params.cu_seqlens_q[index];
    request.q_rows = max(min(params.cu_seqlens_q[index + 1] - request.q_begin, params.seq_q.divisor), 0);
  }
  request.kv_len = max(min(params.kv_len[index], params.max_kv_len), 0);
  request.band = detail::make_band(params.mask, request.q_rows, request.kv_len);
  if (request.q_rows > 0) {
    const detail::KeyRange keys = detail::keys_seen_by_some(request.band, 0, request.q_rows, request.kv_len);
    request.keys = {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
  }
  return request;
}

__device__ inline detail::SplitSchedule schedule_of(const Params& params) {
  return {.prefix = params.prefix,
          .batch = params.batch,
          .length = params.prefix[params.batch + 1],
          .overhead = params.prefix[params.batch + 2],
          .whole = params.whole};
}

/// Keys that some of a range of query rows see, and keys that all of them do. Rows past the last token do not count.
struct Visible {
  detail::TileRange some, every;
};

/// To the rows of `tiles` row tiles from the first_tile-th on.
__device__ inline Visible visible_to(const Params& params, const Request& request, int first_tile, int tiles) {
  const int first = params.heads_per_kv.quotient(first_tile * kRowTile);
  const int last = min(params.heads_per_kv.quotient((first_tile + tiles) * kRowTile - 1), request.q_rows - 1);
  if (first > last) return {{}, {0, kKeyLimit}};
  const detail::KeyRange some = detail::keys_seen_by_some(request.band, first, last + 1, request.kv_len);
  const int begin = static_cast<int>(some.begin), end = static_cast<int>(some.end);
  if (first == last) return {{begin, end}, {begin, end}};
  // Neither bound falls from a row to the next.
  const detail::KeyRange upper = detail::keys_seen_by(request.band, first, request.kv_len);
  const detail::KeyRange lower = detail::keys_seen_by(request.band, last, request.kv_len);
  return {{begin, end}, {static_cast<int>(lower.begin), static_cast<int>(upper.end)}};
}

/// What a row of this CTA's tile sees; rows past the last token see as much as the last.
__device__ inline detail::TileRange seen_by(const Params& params, const Request& request, int row) {
  const int token = max(min(params.heads_per_kv.quotient(blockIdx.x * kRowTile + row), request.q_rows - 1), 0);
  const detail::KeyRange keys = detail::keys_seen_by(request.band, token, request.kv_len);
  return {static_cast<int>(keys.begin), static_cast<int>(keys.end)};
}

/// A share of one request: pairs of tiles [begin, end) of the whole key sequence.
struct alignas(16) Job {
  Request request{.index = -1};
  int begin = 0, end = 0;
  detail::TileRange parts;  // that have shares of the request; none: not placed yet, like all that follows
  int slot = -1;            // of the partial result; -1 where this CTA writes the result of the request
  int collects = 0;         // 1: the others' partial results
  int collected = 0;        // 1: the partial result, by the part where the request begins
  int unused = 0;           // so that nothing is left unwritten of the 16 bytes that are read at once

  __device__ bool done() const { return request.index < 0; }

  // Only the schedules of lists may be even. `lists`: whether there may be any; who has none need not have the code for it.

  /// What a part begins with. From memory all is asked for at once: a compiler would ask for the rest once it knows that there is any.
  static __device__ Job first_of(const Params& params, int part, bool lists) {
    if (lists && params.even.size > 0) return even_share(params.even.first_request(part), params, part);
    Job job;
    load_at_once(params.first_job + part, job);
    return job;
  }
  /// The share after this one.
  __device__ Job next(const Params& params, int part, bool lists) const {
    const int index = request.index + 1;
    return lists && params.even.size > 0 ? even_share(index, params, part) : from(index, params, schedule_of(params), part);
  }

  /// Single tiles; half a pair that is of no use is left out.
  __device__ int tiles() const { return max(min(2 * end, (request.keys.end + kKeyTile - 1) / kKeyTile) - 2 * begin, 1); }

  /// The first share that `part` has of the requests from the index-th on; done() where it has none.
  static __device__ Job from(int index, const Params& params, const detail::SplitSchedule& schedule, int part) {
    for (;; ++index) {
      const Request request = request_at(params, min(index, params.batch - 1));  // asked for beside the schedule
      if (schedule.past(part, index)) return {};
      const detail::TileRange share = schedule.share(part, index);
      if (share.empty()) continue;
      const int first = request.first_pair();
      return {request, first + share.begin, first + share.end};
    }
  }
  /// The one that it has of the index-th request, of an even schedule, with its place; done() where it has none.
  static __device__ Job even_share(int index, const Params& params, int part) {
    const detail::TileRange share = params.even.share(part, index);
    if (index >= params.batch || share.empty()) return {};
    Job job{listed_request(params, index), share.begin, share.end, params.even.parts_of(part, index)};
    if (params.even.shares > 1) job.slot = detail::SplitSchedule::slot(part, share.begin > 0);
    return job;
  }

  /// Where its result goes, unless that is known or there is none. Apart from from(): load warps have no registers for both in one.
  __device__ void place(const detail::SplitSchedule& schedule, int part) {
    if (done() || !parts.empty()) return;
    parts = schedule.parts_of(request.index);
    const bool begins = part == parts.begin, some_collect = schedule.collected(parts);
    collects = begins && some_collect;
    collected = !begins && some_collect;
    slot = !begins || schedule.merged_after(parts) ? schedule.slot(part, !begins) : -1;
  }
  __device__ void place(const Params& params, int part, bool lists) {
    if (!lists || params.even.size == 0) place(schedule_of(params), part);  // of an even one nothing lies in memory
  }
};

/// Which part a CTA computes: the last ones start first, since others wait for them.
__device__ inline int own_part(const Params& params) { return params.parts - 1 - static_cast<int>(blockIdx.z); }

/// Flags of this CTA's row tile in another part, one for each math warp.
__device__ inline int* told(const Params& params, int part) {
  return params.told + ((part * params.kv_heads + blockIdx.y) * params.row_tiles + blockIdx.x) * kMathWarps;
}

/// Query token, and head among those of the kv head, of a row of the sequence's query tiles.
struct PackedRow {
  int token, head;

  __device__ PackedRow(const Params& params, int packed)
      : token(params.heads_per_kv.quotient(packed)), head(packed - token * params.heads_per_kv.divisor) {}
};

/// The query row behind a row of the tiles of a request, or null past the last.
template <class Element>
__device__ inline const Element* query_row(const Params& params, const Request& request, int packed) {
  const PackedRow row(params, packed);
  if (row.token >= request.q_rows) return nullptr;
  return static_cast<const Element*>(params.q) + request.batch * params.q_batch + (request.q_begin + row.token) * params.q_row +
         (blockIdx.y * params.heads_per_kv.divisor + row.head) * params.q_head;
}

/// Whether a math warp's rows hold any: a tile of fewer than 64 need not be moved whole.
__device__ inline bool has_rows(const Params& params, const Request& request, int row_tile, int warp) {
  return row_tile * kRowTile + warp % 4 * kMathWarpRows < request.q_rows * params.heads_per_kv.divisor;
}

}  // namespace fovea::gpu::sm90::latent
