// SPDX-License-Identifier: Apache-2.0
/// Which work tiles a part takes. All query tiles of the batch lie on one line, sequence by sequence, each as long as its sequence has key
/// tiles that some row sees; each part takes an equal length of the flattened. Only lengths and the plan decide, so results are the same
/// whichever CTA computes what, and there is no table: a warp finds its place by sums over the lengths, 32 sequences at a time. All other
/// warps wait for it, so it computes in 32 bits.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/portable/paged_attention/params.hpp"
#include "gpu/cuda/portable/paged_attention/tiles.hpp"

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLeastKeys = 128;  // of a part

struct Sequence {
  int index, q_begin, seq_q, kv_len;
  int rows, row_tiles;    // rows: of all query heads of a kv head
  int first_tile, tiles;  // key tiles that some row sees; one where none does

  __device__ int length() const { return row_tiles * tiles; }
};

/// Beyond the batch: one without rows. So is one that the kernel beside this one computes.
template <int kRowTile>
__device__ __forceinline__ Sequence sequence_at(const Params& params, int index) {
  Sequence s{.index = index};
  if (index >= params.batch) return s;
  s.q_begin = min(max(params.cu_seqlens_q[index], 0), params.total_q);
  const int tokens = max(min(max(params.cu_seqlens_q[index + 1], 0), params.total_q) - s.q_begin, 0);
  s.seq_q = tokens <= params.seq_q ? tokens : params.co_launched ? 0 : params.seq_q;
  s.kv_len = min(max(params.kv_len[index], 0), params.seq_k);
  s.rows = s.seq_q * params.group.divisor;
  s.row_tiles = (s.rows + kRowTile - 1) / kRowTile;
  if (s.seq_q == 0) return s;
  const detail::NarrowTiles seen = detail::NarrowBand(params.mask, s.seq_q, s.kv_len).tiles(kLog2TileKeys, 0, s.seq_q);
  s.first_tile = seen.first;
  s.tiles = max(seen.last - seen.first, 1);
  return s;
}

/// A query tile's place on the flattened.
struct QueryTile {
  Sequence sequence;
  int row;         // the first, of sequence.rows
  int begin, end;  // on the line
};

/// The line of a batch, by a whole warp. Each lane looks at one sequence of 32.
template <int kRowTile>
class FlattenedTiles {
 public:
  int total, part_length;

  __device__ __forceinline__ explicit FlattenedTiles(const Params& params_) : params(params_), lane(static_cast<int>(threadIdx.x) % 32) {
    look();
    total = __shfl_sync(~0u, own_end(), 31);
    if (params.batch > 32) {
      int rest = 0;
#pragma unroll 4
      for (int index = 32 + lane; index < params.batch; index += 32) rest = bounded(rest, sequence_at<kRowTile>(params, index).length());
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) rest = bounded(rest, __shfl_xor_sync(~0u, rest, distance));
      total = bounded(total, rest);
    }
    part_length = max(params.of_parts.quotient(total + params.parts - 1), kLeastKeys / kTileKeys);
  }

  /// Whether the part where a query tile begins takes all of it.
  __device__ bool is_whole(const QueryTile& tile) const { return params.whole || (params.queued && tile.end - tile.begin <= part_length); }

  /// The query tile that holds `position`, which is below `total` and not lower than in the call before.
  __device__ __forceinline__ QueryTile at(int position) {
    unsigned reached;
    while ((reached = __ballot_sync(~0u, position < own_end())) == 0) {
      first += 32;
      look();
    }
    const int found = __ffs(static_cast<int>(reached)) - 1;
    QueryTile tile = of_lane(found);
    if (tile.sequence.row_tiles > 1) {
      const int row_tile = (position - tile.begin) / tile.sequence.tiles;
      tile.row = row_tile * kRowTile;
      tile.begin += row_tile * tile.sequence.tiles;
      tile.end = tile.begin + tile.sequence.tiles;
    }
    tile.end = min(tile.end, kLimit - 1);  // which is where the line ends, if it is as long
    return tile;
  }

 private:
  /// At the lane's sequence of the 32 from `first` on. They begin where the ones before them end.
  __device__ __forceinline__ void look() {
    const int before = first == 0 ? 0 : __shfl_sync(~0u, own_end(), 31);
    own = sequence_at<kRowTile>(params, first + lane);
    own_begin = __shfl_up_sync(~0u, bounded(before, Warp::inclusive_sum(own.length(), bounded)), 1);
    if (lane == 0) own_begin = before;
  }
  /// From what else is in registers: one more would spill.
  __device__ __forceinline__ int own_end() const {
    const int rows = own.seq_q * params.group.divisor;
    return bounded(own_begin, (rows + kRowTile - 1) / kRowTile * own.tiles);
  }
  /// The sum of two lengths. Only what is no cu_seqlens_q makes it larger than a plan allows. Then the line ends here, inside of a query
  /// tile: places stay in order, so that every part of a query tile that another part merges has a result of it.
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

  const Params& params;
  const int lane;
  int first = 0, own_begin = 0;
  Sequence own;
};

/// Where a part leaves its partial result of a query tile: at most one of them begins before the part, and at most one ends after it.
__device__ inline int partial_slot(int part, bool begins_before) { return 2 * part + (begins_before ? 0 : 1); }

/// A query tile and a range of its key tiles.
struct WorkTile {
  int sequence, q_begin, seq_q;
  int row, rows;              // the tile's first row of the sequence, and its rows
  int low, high;              // token i sees key j iff low <= j - i <= high
  int begin, end;             // keys of the key tiles that some row sees; others are absent
  int first, last;            // key tiles [first, last): one at least, whose keys may all be absent
  int full_first, full_last;  // of these, the ones without a mask
  int slot;                   // of the partial result, or -1
  int last_part;              // of those that share the query tile, in the part that merges their results; else -1
  bool uneven;                // rows differ in the keys that they see

  __device__ bool is_none() const { return rows == 0; }
};
static_assert(2 * sizeof(WorkTile) == kWorkBytes);

/// The work tiles of a part, one after another, by a whole warp.
template <int kRowTile>
class TileScheduler {
 public:
  __device__ __forceinline__ TileScheduler(const Params& params_, int part_) : params(params_), flattened(params_), part(part_) {
    position = part * flattened.part_length;
    end = min(position + flattened.part_length, flattened.total);
  }

  /// None where none is left.
  __device__ __forceinline__ WorkTile next() {
    WorkTile work{};
    while (position < end) {
      const QueryTile tile = flattened.at(position);
      const int from = position, to = flattened.is_whole(tile) ? tile.end : min(tile.end, end);
      position = max(to, from + 1);  // whatever cu_seqlens_q holds, this ends
      if (flattened.is_whole(tile) && from != tile.begin) continue;
      fill(work, tile, from - tile.begin, to - tile.begin);
      break;
    }
    return work;
  }

 private:
  /// Key tiles [from, to) of those of the sequence.
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
    if (work.last <= work.first) {  // the part has none of the keys that these rows see
      work.end = work.begin;
      work.full_first = work.last = work.first + 1;
    }
    work.uneven = first_token != last_token;
    const bool split = from > 0 || to < tile.end - tile.begin;
    work.slot = split ? partial_slot(part, tile.begin < part * flattened.part_length) : -1;
    work.last_part = split && from == 0 ? (tile.end - 1) / flattened.part_length : -1;
  }

  const Params& params;
  FlattenedTiles<kRowTile> flattened;
  const int part;
  int position, end;
};

}  // namespace fovea::gpu::portable::paged_attention
