// SPDX-License-Identifier: Apache-2.0
/// Which work tiles a part takes. All query tiles of the batch lie on one line, sequence by sequence, each as long as its sequence has key
/// tiles that some row sees; each part takes an equal length of the line. Only lengths and the plan decide, so results are the same
/// whichever CTA computes what, and there is no table: a warp finds its place by sums over the lengths, 32 sequences at a time.
#pragma once

#include "gpu/cuda/portable/paged_attention/config.hpp"
#include "gpu/cuda/portable/paged_attention/params.hpp"
#include "op/common/band.hpp"

namespace fovea::gpu::portable::paged_attention {

inline constexpr int kLeastTiles = 2;  // key tiles of a part

struct Sequence {
  int index, q_begin, seq_q, kv_len;
  int rows, row_tiles;    // rows: of all query heads of a kv head
  int first_tile, tiles;  // key tiles that some row sees; one where none does

  __device__ std::int64_t length() const { return std::int64_t{row_tiles} * tiles; }
};

template <int kRowTile>
__device__ inline Sequence sequence_at(const Params& params, int index) {
  Sequence s{.index = index};
  s.q_begin = min(max(params.cu_seqlens_q[index], 0), params.total_q);
  s.seq_q = max(min(min(params.cu_seqlens_q[index + 1], params.total_q) - s.q_begin, params.seq_q), 0);
  s.kv_len = min(max(params.kv_len[index], 0), params.seq_k);
  s.rows = s.seq_q * params.group.divisor;
  s.row_tiles = (s.rows + kRowTile - 1) / kRowTile;
  if (s.seq_q == 0) return s;
  const detail::KeyRange seen = detail::keys_seen_by_some(detail::make_band(params.mask, s.seq_q, s.kv_len), 0, s.seq_q, s.kv_len);
  s.first_tile = static_cast<int>(seen.begin / kKeyTile);
  s.tiles = seen.size() == 0 ? 1 : static_cast<int>((seen.end + kKeyTile - 1) / kKeyTile) - s.first_tile;
  return s;
}

/// A query tile's place on the line.
struct QueryTile {
  Sequence sequence;
  int row;                  // the first, of sequence.rows
  std::int64_t begin, end;  // on the line
};

/// The line of a batch, by a whole warp.
template <int kRowTile>
class Line {
 public:
  std::int64_t total = 0, part_length = 1;

  __device__ explicit Line(const Params& params_) : params(params_), lane(static_cast<int>(threadIdx.x) % 32) {
#pragma unroll 4
    for (int index = lane; index < params.batch; index += 32) total += sequence_at<kRowTile>(params, index).length();
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) total += __shfl_xor_sync(~0u, total, distance);
    part_length = max((total + params.parts - 1) / params.parts, std::int64_t{kLeastTiles});
  }

  /// Whether the part where a query tile begins takes all of it.
  __device__ bool is_whole(const QueryTile& tile) const { return params.whole || (params.queued && tile.end - tile.begin <= part_length); }

  /// The query tile that holds `position`, which is below `total` and not lower than in the call before.
  __device__ QueryTile at(std::int64_t position) {
    for (;; first += 32) {
      const std::int64_t own = first + lane < params.batch ? sequence_at<kRowTile>(params, first + lane).length() : 0;
      std::int64_t end = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(~0u, end, distance);
        if (lane >= distance) end += other;
      }
      const unsigned reached = __ballot_sync(~0u, position < before + end);
      if (reached == 0) {
        before += __shfl_sync(~0u, end, 31);
        continue;
      }
      const int found = __ffs(static_cast<int>(reached)) - 1;
      QueryTile tile{sequence_at<kRowTile>(params, first + found)};
      const std::int64_t begin = before + __shfl_sync(~0u, end - own, found);
      const int row_tile = static_cast<int>((position - begin) / tile.sequence.tiles);
      tile.row = row_tile * kRowTile;
      tile.begin = begin + std::int64_t{row_tile} * tile.sequence.tiles;
      tile.end = tile.begin + tile.sequence.tiles;
      return tile;
    }
  }

 private:
  const Params& params;
  const int lane;
  int first = 0;            // of the 32 sequences that were looked at last
  std::int64_t before = 0;  // of the line, before these
};

/// Where a part leaves its partial result of a query tile: at most one of them begins before the part, and at most one ends after it.
__device__ inline int slot_of(int part, const QueryTile& tile, std::int64_t part_length) {
  return 2 * part + (tile.begin < part * part_length ? 0 : 1);
}

/// A query tile and a range of its key tiles.
struct WorkTile {
  int sequence, q_begin, seq_q;
  int row, rows;              // the tile's first row of the sequence, and its rows
  int low, high;              // token i sees key j iff low <= j - i <= high
  int begin, end;             // keys that some row of the tile sees; others are absent
  int first, last;            // key tiles [first, last)
  int full_first, full_last;  // of these, the ones without a mask
  int slot;                   // of the partial result, or -1
  bool uneven;                // rows differ in the keys that they see
};

/// The work tiles of a part, one after another, by a whole warp.
template <int kRowTile>
class Walk {
 public:
  __device__ Walk(const Params& params_, int part_) : params(params_), line(params_), part(part_) {
    position = part * line.part_length;
    end = min(position + line.part_length, line.total);
  }

  /// False where there is none left.
  __device__ bool next(WorkTile& work) {
    while (position < end) {
      const QueryTile tile = line.at(position);
      const std::int64_t from = position, to = line.is_whole(tile) ? tile.end : min(tile.end, end);
      position = to;
      if (line.is_whole(tile) && from != tile.begin) continue;
      fill(work, tile, static_cast<int>(from - tile.begin), static_cast<int>(to - tile.begin));
      return true;
    }
    return false;
  }

 private:
  /// Key tiles [from, to) of those of the sequence.
  __device__ void fill(WorkTile& work, const QueryTile& tile, int from, int to) const {
    const Sequence& s = tile.sequence;
    const int rows = min(s.rows - tile.row, kRowTile);
    const int first_token = params.group.quotient(tile.row), last_token = params.group.quotient(tile.row + rows - 1);
    const detail::Band band = detail::make_band(params.mask, s.seq_q, s.kv_len);
    const detail::KeyRange seen = detail::keys_seen_by_some(band, first_token, last_token + 1, s.kv_len);
    const detail::KvTiles tiles = detail::kv_tiles(band, first_token, last_token + 1, s.kv_len, kKeyTile);
    work = {.sequence = s.index, .q_begin = s.q_begin, .seq_q = s.seq_q, .row = tile.row, .rows = rows};
    work.low = static_cast<int>(band.low);
    work.high = static_cast<int>(band.high);
    work.begin = static_cast<int>(seen.begin);
    work.end = static_cast<int>(seen.end);
    work.first = max(s.first_tile + from, static_cast<int>(tiles.first));
    work.last = min(s.first_tile + to, static_cast<int>(tiles.last));
    work.full_first = static_cast<int>(tiles.full_first);
    work.full_last = static_cast<int>(tiles.full_last);
    work.uneven = first_token != last_token;
    const bool split = from > 0 || to < s.tiles;
    work.slot = split ? slot_of(part, tile, line.part_length) : -1;
  }

  const Params& params;
  Line<kRowTile> line;
  const int part;
  std::int64_t position, end;
};

}  // namespace fovea::gpu::portable::paged_attention
