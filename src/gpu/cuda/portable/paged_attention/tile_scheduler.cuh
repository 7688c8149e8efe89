// SPDX-License-Identifier: Apache-2.0
/// The tile scheduler: it flattens the key tiles of all query tiles of a batch, sequence by sequence, and cuts them
/// into splits of equal length. A query tile has as many flattened tiles as its sequence has key tiles that some row
/// sees. Each split of each kv head is one CTA's share.
///
/// The schedule depends on the lengths and the plan alone, so results do not depend on which CTA computes what. There
/// is no table: a warp finds its work by prefix sums over the lengths, 32 sequences at a time. It computes in 32 bits,
/// as the other warps wait for it.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"
#include "gpu/cuda/portable/paged_attention/tuning.hpp"

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLeastKeys = 128;  // of a split

struct Sequence {
  int index, q_begin, seq_q, kv_len;
  int rows;        // tokens times the query heads of a kv head
  int row_tiles;   // query tiles
  int first_tile;  // the first key tile that some row sees
  int tiles;       // key tiles that some row sees, at least one

  __device__ int length() const { return row_tiles * tiles; }
};

/// Fills in what follows from the query length and the number of keys.
template <int kRowTile>
__device__ __forceinline__ void complete(const Params& params, Sequence& s, int keys) {
  s.kv_len = min(max(keys, 0), params.seq_k);
  s.rows = s.seq_q * params.group.divisor;
  s.row_tiles = (s.rows + kRowTile - 1) / kRowTile;
  if (s.seq_q == 0) return;
  const detail::NarrowTiles seen = detail::NarrowBand(params.mask, s.seq_q, s.kv_len).tiles(kLog2TileKeys, 0, s.seq_q);
  s.first_tile = seen.first;
  s.tiles = max(seen.last - seen.first, 1);
}

/// Sequences beyond the batch have no rows. Neither do those that the co-launched kernel computes.
template <int kRowTile>
__device__ __forceinline__ Sequence sequence_at(const Params& params, int index) {
  Sequence s{.index = index};
  if (index >= params.batch) return s;
  s.q_begin = min(max(params.cu_seqlens_q[index], 0), params.total_q);
  const int tokens = max(min(max(params.cu_seqlens_q[index + 1], 0), params.total_q) - s.q_begin, 0);
  s.seq_q = tokens <= params.seq_q ? tokens : params.co_launched ? 0 : params.seq_q;
  complete<kRowTile>(params, s, params.kv_len[index]);
  return s;
}

/// A query tile and its flattened tiles.
struct QueryTile {
  Sequence sequence;
  int row;  // the first of the tile, counted in the sequence
  int begin;
  int end;
};

/// The flattened tiles of a batch, computed by a whole warp. Each lane has one sequence of 32. `Parameters`: those of this kernel, or of
/// one that derives from them and has its own sequence_at.
template <int kRowTile, class Parameters = Params>
class FlattenedTiles {
 public:
  int total;
  int split_length;

  __device__ __forceinline__ explicit FlattenedTiles(const Parameters& params_)
      : params(params_), lane(static_cast<int>(threadIdx.x) % 32) {
    load_sequences();
    total = __shfl_sync(~0u, own_end(), 31);
    if (params.batch > 32) {
      int rest = 0;
#pragma unroll 4
      for (int index = 32 + lane; index < params.batch; index += 32) rest = bounded(rest, sequence_at<kRowTile>(params, index).length());
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) rest = bounded(rest, __shfl_xor_sync(~0u, rest, distance));
      total = bounded(total, rest);
    }
    split_length = max(params.splits_divmod.quotient(total + params.splits - 1), kLeastKeys / kTileKeys);
  }

  /// Whether the split in which a query tile begins takes all of it.
  __device__ bool is_whole(const QueryTile& tile) const { return params.whole || (params.queued && tile.end - tile.begin <= split_length); }

  /// The query tile at `position`, which is below `total` and not lower than in the previous call.
  __device__ __forceinline__ QueryTile at(int position) {
    unsigned reached;
    while ((reached = __ballot_sync(~0u, position < own_end())) == 0) {
      first += 32;
      load_sequences();
    }
    const int found = __ffs(static_cast<int>(reached)) - 1;
    QueryTile tile = of_lane(found);
    if (tile.sequence.row_tiles > 1) {
      const int row_tile = (position - tile.begin) / tile.sequence.tiles;
      tile.row = row_tile * kRowTile;
      tile.begin += row_tile * tile.sequence.tiles;
      tile.end = tile.begin + tile.sequence.tiles;
    }
    tile.end = min(tile.end, kLimit - 1);  // where `bounded` ends
    return tile;
  }

 private:
  /// Computes the flattened tiles of the 32 sequences from `first` on. They follow those of the sequences before.
  __device__ __forceinline__ void load_sequences() {
    const int before = first == 0 ? 0 : __shfl_sync(~0u, own_end(), 31);
    own = sequence_at<kRowTile>(params, first + lane);
    own_begin = __shfl_up_sync(~0u, bounded(before, Warp::inclusive_sum(own.length(), bounded)), 1);
    if (lane == 0) own_begin = before;
  }
  /// Recomputed instead of kept: one more register would spill.
  __device__ __forceinline__ int own_end() const {
    const int rows = own.seq_q * params.group.divisor;
    return bounded(own_begin, (rows + kRowTile - 1) / kRowTile * own.tiles);
  }
  /// The sum of two lengths, at most kLimit - 1. A valid cu_seqlens_q stays below. With an invalid one the flattened
  /// tiles end inside a query tile. Positions stay ordered, so every split that a reduction waits for has a result.
  static __device__ __forceinline__ int bounded(int a, int b) { return min(a + b, kLimit - 1); }

  __device__ __forceinline__ QueryTile of_lane(int found) const {
    const auto of_found = [&](int x) { return __shfl_sync(~0u, x, found); };
    Sequence s{.index = first + found, .q_begin = of_found(own.q_begin), .seq_q = of_found(own.seq_q), .kv_len = of_found(own.kv_len)};
    s.first_tile = of_found(own.first_tile);
    s.tiles = of_found(own.tiles);
    s.rows = s.seq_q * params.group.divisor;
    s.row_tiles = (s.rows + kRowTile - 1) / kRowTile;
    const int begin = of_found(own_begin);
    return {s, 0, begin, begin + s.tiles};
  }

  const Parameters& params;
  const int lane;
  int first = 0, own_begin = 0;
  Sequence own;
};

/// The slot of a split's partial result. At most one query tile begins before the split, and at most one ends after it.
__device__ inline int partial_slot(int split, bool begins_before) { return 2 * split + (begins_before ? 0 : 1); }

/// A query tile and a range of its key tiles. Token i sees key j iff low <= j - i <= high.
struct WorkTile {
  int sequence;
  int q_begin;
  int seq_q;
  int row;   // the first of the query tile, counted in the sequence
  int rows;  // of the query tile; 0 if there is no work tile any more
  int low;
  int high;
  int begin;  // keys [begin, end) of the key tiles that some row sees; others are absent
  int end;
  int first;  // key tiles [first, last), at least one; all of its keys may be absent
  int last;
  int full_first;  // key tiles [full_first, full_last) need no mask
  int full_last;
  int slot;        // of the partial result, or -1
  int last_split;  // the last one that shares the query tile, in the split that reduces it; else -1
  bool uneven;     // rows differ in the keys that they see

  __device__ bool is_none() const { return rows == 0; }
};
static_assert(2 * sizeof(WorkTile) == kWorkBytes);

/// The work tiles of a split, one after another, found by a whole warp.
template <int kRowTile, class Parameters = Params>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Parameters& params_, int split_) : params(params_), flattened(params_), split(split_) {
    position = split * flattened.split_length;
    end = min(position + flattened.split_length, flattened.total);
  }

  /// The next work tile; is_none() after the last one.
  __device__ __forceinline__ WorkTile next() {
    WorkTile work{};
    while (position < end) {
      const QueryTile tile = flattened.at(position);
      const int from = position, to = flattened.is_whole(tile) ? tile.end : min(tile.end, end);
      position = max(to, from + 1);  // so that the loop ends for any cu_seqlens_q
      if (flattened.is_whole(tile) && from != tile.begin) continue;
      fill(work, tile, from - tile.begin, to - tile.begin);
      break;
    }
    return work;
  }

 private:
  /// `from`, `to`: a range of the sequence's key tiles.
  __device__ __forceinline__ void fill(WorkTile& work, const QueryTile& tile, int from, int to) const {
    const Sequence& s = tile.sequence;
    const int rows = min(s.rows - tile.row, kRowTile);
    const int first_token = params.group.quotient(tile.row), last_token = params.group.quotient(tile.row + rows - 1);
    const detail::NarrowBand band(params.mask, s.seq_q, s.kv_len);
    const detail::NarrowTiles seen = band.tiles(kLog2TileKeys, first_token, last_token + 1);
    work = {.sequence = s.index, .q_begin = s.q_begin, .seq_q = s.seq_q, .row = tile.row, .rows = rows};
    work.low = band.low;
    work.high = band.high;
    work.first = max(s.first_tile + from, seen.first);
    work.last = min(s.first_tile + to, seen.last);
    work.begin = max(seen.begin, work.first * kTileKeys);
    work.end = min(seen.end, work.last * kTileKeys);
    work.full_first = seen.full_first;
    work.full_last = min(seen.full_last, work.last);
    if (work.last <= work.first) {  // the rows see no key of the split
      work.end = work.begin;
      work.full_first = work.last = work.first + 1;
    }
    work.uneven = first_token != last_token;
    const bool partial = from > 0 || to < tile.end - tile.begin;
    work.slot = partial ? partial_slot(split, tile.begin < split * flattened.split_length) : -1;
    work.last_split = partial && from == 0 ? (tile.end - 1) / flattened.split_length : -1;
  }

  const Parameters& params;
  FlattenedTiles<kRowTile, Parameters> flattened;
  const int split;
  int position, end;
};

}  // namespace fovea::gpu::portable::paged_attention
