// SPDX-License-Identifier: Apache-2.0
/// Which columns a query sees, and where their keys lie: as op/index_logits/keys.hpp says, without its divisions, which a producer's warp
/// has no time for.
#pragma once

#include "gpu/cuda/sm90/index_logits/params.hpp"

namespace fovea::gpu::sm90::indexer {

/// The first column that a query sees, and the one behind the last. Without kPaged: of flat keys alone.
template <bool kPaged>
__device__ int2 columns_of_row(const Params& params, int row) {
  const int columns = static_cast<int>(params.shape.columns);
  int first = 0, last = columns;
  if (kPaged && params.shape.paged) {
    const int queries = params.sequence_rows.divisor, sequence = params.sequence_rows.quotient(row);
    const int queries_after = queries - 1 - (row - sequence * queries);
    last = min(max(params.args.kv_len[sequence], 0) - queries_after, params.room);
  } else {
    if (params.args.first != nullptr) first = max(params.args.first[row], 0);
    if (params.args.last != nullptr) last = min(params.args.last[row], columns);
  }
  return first < last ? int2{first, last} : int2{0, 0};
}

/// The block and the token in it of a column that `row` might see. Block -1 is not one of the cache.
__device__ inline int2 place_of(const Params& params, int row, int column) {
  const detail::IndexLogitsShape& shape = params.shape;
  if (!shape.paged) return {0, column};
  if (column >= params.room) return {-1, 0};
  const int block = params.page.quotient(column), sequence = params.sequence_rows.quotient(row);
  const int number = params.args.block_table[sequence * shape.table_stride + block];
  return {number < shape.blocks ? max(number, -1) : -1, column - block * params.page.divisor};
}

}  // namespace fovea::gpu::sm90::indexer
