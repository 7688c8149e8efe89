// SPDX-License-Identifier: Apache-2.0
/// The sequence and kv head of a CTA: its query rows, its key tiles, and keys in their pages.
#pragma once

#include "gpu/cuda/sm90/paged_attention/active_ctas.cuh"
#include "gpu/cuda/sm90/paged_attention/columns/config.hpp"

namespace fovea::gpu::sm90::paged_attention::columns {

struct Cell {
  const Params& params;
  int number, kv_head;
  int rows = 0;            // query rows: tokens, and the heads of the group in each
  int begin = 0, end = 0;  // keys that some row sees
  WorkTile work{};

  __device__ Cell(const Params& params_, int batch, int kv_head_, int key_tile)
      : params(params_), number(batch * params_.kv_heads + kv_head_), kv_head(kv_head_) {
    const dense::RaggedSequence sequence = any_sequence_at(params, batch);
    work.batch = batch;
    work.head = kv_head * params.heads_per_kv;
    work.q_begin = sequence.q_begin;
    work.seq_q = sequence.seq_q;
    work.seq_k = sequence.seq_k;
    rows = work.seq_q * params.heads_per_kv;
    if (rows == 0) return;
    const detail::Band band = detail::make_band(params.mask, work.seq_q, work.seq_k);
    const detail::KvTiles tiles = detail::kv_tiles(band, 0, work.seq_q, work.seq_k, key_tile);
    work.low = static_cast<int>(band.low);
    work.high = static_cast<int>(band.high);
    work.first = static_cast<int>(tiles.first);
    work.last = static_cast<int>(tiles.last);
    work.full_first = static_cast<int>(tiles.full_first);
    work.full_last = static_cast<int>(tiles.full_last);
    begin = work.keys_of(0).begin;
    end = work.keys_of(work.seq_q - 1).end;
  }

  __device__ int tiles() const { return max(work.last - work.first, 0); }
  /// Token and head of a row.
  __device__ RowPlace place(int row) const {
    const int token = row / params.heads_per_kv;
    return {token, work.head + row - token * params.heads_per_kv};
  }
  __device__ bool sees(int key) const { return key >= begin && key < end; }
  /// Block of a key that some row sees. The cache need not have it.
  __device__ int block_of(int key) const { return params.block_table[work.batch * params.table_stride + params.page.quotient(key)]; }
  /// Elements from a head's beginning in a cache to the row of a key.
  __device__ std::int64_t offset_in_head(const detail::RowStrides& strides, int key, int block) const {
    const int token = key - params.page.quotient(key) * params.page.divisor;
    return block * strides.batch + token * strides.row;
  }
  __device__ float* scores_of(int tile, int key_tile) const {
    return params.scores + (std::int64_t{number} * params.key_tiles + tile) * params.score_words(key_tile);
  }
  __device__ int* ready(int tile) const { return params.ready + std::int64_t{number} * params.key_tiles + tile; }
  __device__ int* state() const { return params.states + 2 * number; }
};

}  // namespace fovea::gpu::sm90::paged_attention::columns
