// SPDX-License-Identifier: Apache-2.0
/// The work tile of a CTA. CTAs start in the order of their index. Rows of queries are ordered by head, which keeps keys and
/// values in L2, and those that see most keys come first. Rows of keys have the order of gradient::key_tile_at.
#pragma once

#include <bit>

#include "gpu/cuda/common/gradient/lists.cuh"
#include "gpu/cuda/portable/attention_backward/config.hpp"

namespace fovea::gpu::portable::attention_backward {

/// Rows of one sequence and head, and the tiles of columns that they see.
struct Work {
  Sequence sequence;
  int head;                              // of the rows
  int row;                               // the first, of the sequence
  int rows;                              // of the sequence
  int low, high;                         // row i sees column j iff low <= j - i <= high
  detail::GradientOrder::Range columns;  // tiles
  bool none = true;
};

/// A tile of columns, and the head that it is of.
struct Step {
  int head, tile;
};

template <class Config>
__device__ inline Work query_rows_at(const typename Config::Params& params, int index) {
  const int tile = params.row_tiles - 1 - index % params.row_tiles;
  const int b = sequence_at(params, params.cu_seqlens_q, params.seq_q, Config::kRows, tile);
  Work work{.sequence = sequence(params, b), .head = index / params.row_tiles};
  const int in_sequence = tile - first_tile(params.cu_seqlens_q, params.seq_q, b, Config::kRows);
  work.row = in_sequence * Config::kRows;
  work.rows = work.sequence.seq_q;
  if (work.row >= work.rows) return work;
  const detail::GradientOrder order = order_of(params, work.sequence, Config::kColumns, Config::kRows);
  work.low = order.low;
  work.high = order.high;
  work.columns = order.key_tiles_of(in_sequence);
  work.none = work.columns.size() == 0;  // prepare has stored zeros
  if constexpr (Config::kLists) work.none = lists_are_empty(params.lists, b, work.head, work.row);
  return work;
}

/// The same as key_rows_at, where all sequences have one length.
template <class Config>
__device__ __forceinline__ Work fixed_key_rows_at(const Params& params, int index) {
  constexpr int kLog2Keys = std::countr_zero(unsigned{Config::kRows}), kLog2Queries = std::countr_zero(unsigned{Config::kColumns});
  static_assert(1 << kLog2Keys == Config::kRows && 1 << kLog2Queries == Config::kColumns);
  const FixedKeyTiles& fixed = params.fixed;
  const int group = fixed.group.quotient(index), inside = index - group * fixed.group.divisor, first = group * fixed.beside;
  const int heads = min(fixed.beside, params.kv_heads * params.batch - first);  // fewer in the last group
  const int tile = heads == 1 ? inside : heads == kHeadsBeside ? inside / kHeadsBeside : inside / heads;
  const int head = first + inside - tile * heads, batch = fixed.kv_heads.quotient(head);
  const int of_sequence = (params.seq_q + kQueryTile - 1) / kQueryTile;
  Work work{.sequence = {batch, 0, 0, params.seq_q, params.seq_k, batch * of_sequence}, .head = head - batch * params.kv_heads};
  work.row = tile << kLog2Keys;
  work.rows = params.seq_k;
  work.low = -fixed.high;
  work.high = -fixed.low;
  const int begin = max(work.row - fixed.high, 0);
  const int last = min(min(work.row + Config::kRows, params.seq_k) - 1 - fixed.low, params.seq_q - 1);
  if (fixed.low <= fixed.high && begin <= last) work.columns = {begin >> kLog2Queries, (last >> kLog2Queries) + 1};
  work.none = work.row >= params.seq_k;
  return work;
}

template <class Config>
__device__ inline Work key_rows_at(const typename Config::Params& params, int index) {
  const KeyTile tile = tile_at_ticket(params, Config::kRows, index);
  const detail::GradientOrder order = order_of(params, tile.sequence, Config::kRows, Config::kColumns);
  return {.sequence = tile.sequence,
          .head = tile.kv_head,
          .row = tile.begin,
          .rows = tile.sequence.seq_k,
          .low = -order.high,
          .high = -order.low,
          .columns = order.query_tiles_of(tile.index),
          .none = tile.none};
}

}  // namespace fovea::gpu::portable::attention_backward
