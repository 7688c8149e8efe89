// SPDX-License-Identifier: Apache-2.0
/// Tiles of a backward pass and their sequences. Tiles of a ragged batch are numbered with gaps: sequence b begins at
/// begin / tile + b, so no scan is needed. `Params` derives from GradientParams.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/gradient/params.hpp"
#include "op/common/band.hpp"
#include "op/common/gradient_order.hpp"

namespace fovea::gpu::gradient {

struct Sequence {
  int batch;             // index of the tensors' first dimension
  int q_begin, k_begin;  // its first rows
  int seq_q, seq_k;
  int query_tile;  // the number of its first query tile

  __device__ std::int64_t offset(const detail::RowStrides& strides, int begin, int token, int head) const {
    return batch * strides.batch + std::int64_t{begin + token} * strides.row + head * strides.head;
  }
};

/// Number of the first tile of sequence b; for b = batch, the count of all tiles.
__device__ inline int first_tile(const std::int32_t* cu_seqlens, int bound, int b, int tile) {
  return cu_seqlens != nullptr ? (cu_seqlens[b] - cu_seqlens[0]) / tile + b : b * ((bound + tile - 1) / tile);
}

/// The last sequence that begins at `tile` or before.
template <class Params>
__device__ inline int sequence_at(const Params& params, const std::int32_t* cu_seqlens, int bound, int tile_rows, int tile) {
  int low = 0, high = params.batch;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (first_tile(cu_seqlens, bound, middle, tile_rows) <= tile ? low : high) = middle;
  }
  return low;
}

template <class Params>
__device__ inline Sequence sequence(const Params& params, int b) {
  const int query_tile = first_tile(params.cu_seqlens_q, params.seq_q, b, kQueryTile);
  if (params.cu_seqlens_q == nullptr) return {b, 0, 0, params.seq_q, params.seq_k, query_tile};
  const auto length = [&](const std::int32_t* cu, int bound) { return min(max(cu[b + 1] - cu[b], 0), bound); };
  return {0,
          params.cu_seqlens_q[b],
          params.cu_seqlens_k[b],
          length(params.cu_seqlens_q, params.seq_q),
          length(params.cu_seqlens_k, params.seq_k),
          query_tile};
}

/// Key tiles that add to dq in order at a time, with kOrderedDq.
template <class Params>
__device__ inline int group_of(const Params& params) {
  if constexpr (Params::kOrderedDq) {
    return params.group;
  } else {
    return 1;
  }
}

/// The order of a sequence's tiles.
template <class Params>
__device__ inline detail::GradientOrder order_of(const Params& params, const Sequence& sequence, int key_tile,
                                                 int query_tile = kQueryTile) {
  const detail::Band band = detail::make_band(params.mask, sequence.seq_q, sequence.seq_k);
  return {.seq_q = sequence.seq_q,
          .seq_k = sequence.seq_k,
          .low = static_cast<int>(band.low),
          .high = static_cast<int>(band.high),
          .query_rows = query_tile,
          .key_rows = key_tile,
          .group = group_of(params)};
}

/// A CTA's keys of one sequence, and the query heads that share them.
struct KeyTile {
  Sequence sequence;
  int kv_head;
  int index, begin;  // number of the tile and of its first key in the sequence
  bool none;
};

/// Heads whose key tiles are interleaved under a band, so that first key tiles, which see the most, start first. With more
/// heads, few key tiles of a head would be resident together, and dq would leave L2 between additions.
inline constexpr int kHeadsBeside = 16;

/// The key tile of a CTA. A ragged batch is ordered by sequence; otherwise all heads of the batch count as those of one
/// sequence. Key tiles are ordered by head, or by groups of kHeadsBeside heads, then from the first on. `rows`: of a key tile.
template <class Params>
__device__ inline KeyTile key_tile_at(const Params& params, int rows, int ticket) {
  const bool ragged = params.cu_seqlens_k != nullptr;
  const int of = ragged ? sequence_at(params, params.cu_seqlens_k, params.seq_k, rows, ticket / params.kv_heads) : 0;
  const int first = first_tile(params.cu_seqlens_k, params.seq_k, of, rows);
  const int count = first_tile(params.cu_seqlens_k, params.seq_k, of + 1, rows) - first, at = ticket - first * params.kv_heads;
  const int heads = ragged ? params.kv_heads : params.kv_heads * params.batch;
  KeyTile tile{.sequence = sequence(params, of)};
  tile.none = count <= 0 || at >= count * heads;
  if (tile.none) return tile;
  const int beside = order_of(params, tile.sequence, rows).full() ? 1 : kHeadsBeside, group = at / (beside * count);
  const int inside = at - group * beside * count, size = min(beside, heads - group * beside);
  tile.index = inside / size;
  tile.kv_head = group * beside + inside - tile.index * size;
  if (!ragged) {
    tile.sequence = sequence(params, tile.kv_head / params.kv_heads);
    tile.kv_head %= params.kv_heads;
  }
  tile.begin = tile.index * rows;
  tile.none = tile.begin >= tile.sequence.seq_k;
  return tile;
}

}  // namespace fovea::gpu::gradient
