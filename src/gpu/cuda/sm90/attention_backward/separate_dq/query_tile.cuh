// SPDX-License-Identifier: Apache-2.0
/// Work tiles of the separate kernel of dq: 128 queries of a head, and the key tiles that they see. Its
/// constants, shared memory and producer.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/common/gradient/sequence.cuh"
#include "gpu/cuda/sm90/attention_backward/config.hpp"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/clipped_rows.cuh"

namespace fovea::gpu::sm90::attention_backward {

inline constexpr int kQueryCells = 2;  // query tiles of a CTA, one for each warpgroup
inline constexpr int kRowTile = kQueryCells * kQueryTile;

/// `Of`: the Config of the kernel of dk and dv.
template <class Of>
struct QueryConfig {
  using Element = typename Of::Element;
  static constexpr bool kSoftcap = Of::kSoftcap;
  static constexpr int kHeadDimQk = Of::kHeadDimQk, kHeadDimV = Of::kHeadDimV, kSlicesQk = Of::kSlicesQk, kSlicesV = Of::kSlicesV;
  static constexpr int kKeyTile = Of::kTuning.dq_key_tile;
  static constexpr int kKeyStages = Of::kTuning.dq_key_stages, kValueStages = Of::kTuning.dq_value_stages;
  static constexpr int kCellBytes = kQueryTile * kSliceBytes;  // rows of a warpgroup in a slice
  static constexpr int kQuerySliceBytes = kRowTile * kSliceBytes, kKeySliceBytes = kKeyTile * kSliceBytes;
  static constexpr int kQueryBytes = kSlicesQk * kQuerySliceBytes, kDoutBytes = kSlicesV * kQuerySliceBytes;
  static constexpr int kKeyBytes = kSlicesQk * kKeySliceBytes, kValueBytes = kSlicesV * kKeySliceBytes;
  static constexpr int kThreads = 128 * (kQueryCells + 1);
  static constexpr int kMathRegisters = 240, kLoadRegisters = 24;
  static_assert(kKeyTile % 16 == 0);
  static_assert(128 * (kQueryCells * kMathRegisters + kLoadRegisters) <= 65536);
};

template <class Config>
struct QueryStorage {
  alignas(1024) std::byte q[Config::kQueryBytes];  // [slice][query][64]; then dQ
  alignas(1024) std::byte dout[Config::kDoutBytes];
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];
  alignas(1024) std::byte v[Config::kValueStages][Config::kValueBytes];
  // full: the producer's lane arrives, and TMA completes its bytes; warps with queries wait.
  // empty: a lane of each such warp arrives; the producer waits.
  alignas(8) std::uint64_t q_full, k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
};

struct QueryRows {
  Sequence sequence;
  int head, token;  // token: the first of the tile
  int low, high;    // the band
  int first, last;  // key tiles

  __device__ TilePlace place(int cell) const {
    const int begin = token + cell * kQueryTile;
    return {sequence.batch, head, sequence.q_begin + begin, min(kQueryTile, sequence.seq_q - begin)};
  }
};

/// The rows of a CTA. The last queries come first, as they see most keys under a causal mask.
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

/// The producer: one lane loads Q and dO once, then K and V of each key tile.
template <class Config>
__device__ inline void load_tiles(const Params& params, QueryStorage<Config>& storage, const QueryRows& rows) {
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
    const std::uint32_t k_full = producer_acquire(keys, storage.k_full, storage.k_empty, Config::kKeyBytes);
    load_clipped<Config::kSlicesQk>(shared_address(storage.k[keys.stage]), Config::kKeySliceBytes, params.dq_k, at, k_full);
    const std::uint32_t v_full = producer_acquire(values, storage.v_full, storage.v_empty, Config::kValueBytes);
    load_clipped<Config::kSlicesV>(shared_address(storage.v[values.stage]), Config::kKeySliceBytes, params.dq_v, at, v_full);
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
