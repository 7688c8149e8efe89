// SPDX-License-Identifier: Apache-2.0
/// The work tiles of the kernel of dq: 128 queries of a head, and the keys that they see.
#pragma once

#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/sm90/attention_backward/apart/config.hpp"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"

namespace fovea::gpu::sm90::attention_backward {

struct QueryRows {
  Sequence sequence;
  int head, token;  // the first
  int low, high;    // the band
  int first, last;  // key tiles

  __device__ TilePlace place(int cell) const {
    const int begin = token + cell * kQueryTile;
    return {sequence.batch, head, sequence.q_begin + begin, min(kQueryTile, sequence.seq_q - begin)};
  }
};

/// The last queries first: under a causal mask, they see most keys.
__device__ inline QueryRows query_rows_at(const Params& params, int tiles, int block, int head, int key_tile) {
  const int tile = tiles - 1 - block, b = sequence_at(params, params.cu_seqlens_q, params.seq_q, kRowTile, tile);
  const int index = tile - first_tile(params.cu_seqlens_q, params.seq_q, b, kRowTile);
  QueryRows rows{.sequence = sequence(params, b), .head = head, .token = index * kRowTile};
  detail::GradientOrder order = order_of(params, rows.sequence, key_tile);
  order.query_rows = kRowTile;
  rows.low = order.low;
  rows.high = order.high;
  const auto seen = rows.token < rows.sequence.seq_q ? order.key_tiles_of(index) : detail::GradientOrder::Range{};
  rows.first = seen.first;
  rows.last = seen.last;
  return rows;
}

/// The producer: a lane copies Q and dO once, then K and V of each key tile.
template <class Config>
__device__ inline void load_keys(const Params& params, QueryStorage<Config>& storage, const QueryRows& rows) {
  const std::uint32_t q_full = shared_address(&storage.q_full);
  barrier_arrive_expect_tx(q_full, Config::kQueryBytes + Config::kDoutBytes);
#pragma unroll
  for (int cell = 0; cell < kQueryCells; ++cell) {
    const TilePlace at = rows.place(cell);
    load_clipped<Config::kSlicesQk>(shared_address(storage.q) + cell * Config::kCellBytes, Config::kQuerySliceBytes, params.q, at, q_full);
    load_clipped<Config::kSlicesV>(shared_address(storage.dout) + cell * Config::kCellBytes, Config::kQuerySliceBytes, params.dout, at,
                                   q_full);
  }
  PipelineState<Config::kKeyStages> keys;
  PipelineState<Config::kValueStages> values;
  for (int tile = rows.first; tile < rows.last; ++tile, keys.advance(), values.advance()) {
    const int token = tile * Config::kKeyTile;
    const TilePlace at{rows.sequence.batch, rows.head / params.heads_per_kv, rows.sequence.k_begin + token,
                       min(Config::kKeyTile, rows.sequence.seq_k - token)};
    const std::uint32_t k_full = shared_address(&storage.k_full[keys.stage]), v_full = shared_address(&storage.v_full[values.stage]);
    barrier_wait(shared_address(&storage.k_empty[keys.stage]), keys.parity ^ 1);
    barrier_arrive_expect_tx(k_full, Config::kKeyBytes);
    load_clipped<Config::kSlicesQk>(shared_address(storage.k[keys.stage]), Config::kKeySliceBytes, params.dq_k, at, k_full);
    barrier_wait(shared_address(&storage.v_empty[values.stage]), values.parity ^ 1);
    barrier_arrive_expect_tx(v_full, Config::kValueBytes);
    load_clipped<Config::kSlicesV>(shared_address(storage.v[values.stage]), Config::kKeySliceBytes, params.dq_v, at, v_full);
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
