// SPDX-License-Identifier: Apache-2.0
/// A work tile of dense attention: query rows of one sequence and of the heads that are packed together, and the key
/// tiles of one split.
#pragma once

#include <cstdint>

#include "op/common/band.hpp"
#include "op/common/strides.hpp"

namespace fovea::gpu {

/// A row of a query tile, as token of the sequence and head.
struct RowPlace {
  int token, head;
};

struct WorkTile {
  int batch, head;            // head: the first of the packed ones
  int token;                  // the first of the query tile, counted in the sequence
  int q_begin, k_begin;       // first rows of the sequence in the tensors
  int seq_q, seq_k;           // its lengths
  int low, high;              // token i sees key j iff low <= j - i <= high
  int first, last;            // key tiles [first, last)
  int full_first, full_last;  // key tiles [full_first, full_last) need no mask
  int split;
  bool done;  // a persistent CTA has no work tile any more

  struct Keys {
    int begin, end;
  };
  __device__ Keys keys_of(int of_token) const { return {max(of_token + low, 0), min(of_token + high + 1, seq_k)}; }
  /// Those of keys_of in the work tile's key tiles.
  __device__ Keys own_keys_of(int of_token, int key_tile) const {
    const Keys seen = keys_of(of_token);
    return {max(seen.begin, first * key_tile), min(seen.end, last * key_tile)};
  }
  /// Token and head of a row of the query tile. 2^packed_shift heads are packed.
  __device__ RowPlace place(int row, int packed_shift) const {
    return {token + (row >> packed_shift), head + (row & ((1 << packed_shift) - 1))};
  }
  /// Offset of a row of q, out or lse.
  __device__ std::int64_t offset(const detail::RowStrides& strides, RowPlace at) const {
    return batch * strides.batch + std::int64_t{q_begin + at.token} * strides.row + at.head * strides.head;
  }

  /// Sets the visible keys and key tiles, once the sequence and `token` are set. `Params` has mask and packed_shift.
  template <class Params>
  __device__ void find_keys(const Params& params, int row_tile, int key_tile) {
    const detail::Band band = detail::make_band(params.mask, seq_q, seq_k);
    low = static_cast<int>(band.low);
    high = static_cast<int>(band.high);
    const detail::KvTiles tiles = detail::kv_tiles(band, token, min(token + (row_tile >> params.packed_shift), seq_q), seq_k, key_tile);
    first = static_cast<int>(tiles.first);
    last = static_cast<int>(tiles.last);
    full_first = static_cast<int>(tiles.full_first);
    full_last = static_cast<int>(tiles.full_last);
  }
  /// Keeps the key tiles of `split` out of `splits`.
  __device__ void keep_split(int splits) {
    const int begin = first, count = last - first;
    first = begin + static_cast<int>(std::int64_t{count} * split / splits);
    last = begin + static_cast<int>(std::int64_t{count} * (split + 1) / splits);
  }
};

/// Length of a sequence of a ragged batch.
__device__ inline int sequence_length(const std::int32_t* cu_seqlens, int sequence, int bound) {
  return min(max(cu_seqlens[sequence + 1] - cu_seqlens[sequence], 0), bound);
}

}  // namespace fovea::gpu
