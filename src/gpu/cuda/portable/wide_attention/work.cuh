// SPDX-License-Identifier: Apache-2.0
/// The work tile of a CTA. CTAs start in the order of their index: head by head, and query tiles
/// with most keys first.
#pragma once

#include "gpu/cuda/common/warp.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/portable/wide_attention/config.hpp"

namespace fovea::gpu::portable::wide_attention {

/// NaN and 0 in every type: keys and values of a block number outside of the cache. Copies read
/// chunks of 16 bytes.
struct alignas(16) ConstantRow {
  std::uint32_t words[kHeadDim / 2];
  constexpr explicit ConstantRow(std::uint32_t word) : words() {
    for (std::uint32_t& each : words) each = word;
  }
};
static __device__ const ConstantRow kNaNRow(~0u), kZeroRow(0);

struct WorkTile : gpu::WorkTile {
  const void *keys, *values;  // row 0 of the sequence, or of the cache, of the head of both
  const std::int32_t* table;  // of the sequence, in a cache
  int begin;                  // the first key that a row of the tile may see
};

/// A row of keys or values: of dense rows, or of a cache.
template <class Config>
__device__ __forceinline__ const typename Config::Element* key_row(const Params& params, const WorkTile& work,
                                                                   const Rows<const void*>& rows, const void* first, int key,
                                                                   const ConstantRow& outside) {
  using Element = typename Config::Element;
  const auto* from = static_cast<const Element*>(first);
  if constexpr (!Config::kPaged) return from + key * rows.strides.row;
  if (key < work.begin) return reinterpret_cast<const Element*>(&kZeroRow);  // its block number may be anything
  const int page = params.page.quotient(key), block = work.table[page];
  if (static_cast<unsigned>(block) >= static_cast<unsigned>(params.blocks)) return reinterpret_cast<const Element*>(&outside);
  return from + block * rows.strides.batch + (key - page * params.page.divisor) * rows.strides.row;
}

template <class Config>
class WorkFinder {
 public:
  __device__ explicit WorkFinder(const Params& params_) : params(params_) {}

  /// The work tile of this CTA, by a whole warp. False where a ragged batch has fewer than there
  /// may be.
  __device__ bool operator()(WorkTile& work) const {
    const int index = static_cast<int>(blockIdx.x), heads = params.heads >> params.packed_shift;
    int head = index / params.q_tiles, q_tile = index % params.q_tiles;
    work.split = head % params.splits.count;
    head /= params.splits.count;
    work.batch = head / heads;  // 0 where ragged
    work.head = head % heads << params.packed_shift;
    work.q_begin = work.k_begin = 0;
    work.seq_q = params.seq_q;
    work.seq_k = params.seq_k;
    if (params.cu_seqlens_q != nullptr && !seek(work, q_tile)) return false;
    work.token = (query_tiles(work.seq_q) - 1 - q_tile) * tokens();
    work.find_keys(params, Config::kRowTile, Config::kKeyTile);
    work.keep_split(params.splits.count);
    work.begin = max(work.token + work.low, 0);
    const int kv_head = work.head / params.heads_per_kv;
    if constexpr (Config::kPaged) work.table = params.block_table + work.batch * params.table_stride;
    const int batch = Config::kPaged ? 0 : work.batch;
    work.keys = row_of_head<typename Config::Element>(params.k, batch, work.k_begin, kv_head);
    work.values = row_of_head<typename Config::Element>(params.v, batch, work.k_begin, kv_head);
    return true;
  }

 private:
  __device__ int tokens() const { return Config::kRowTile >> params.packed_shift; }
  __device__ int query_tiles(int seq_q) const { return (seq_q + tokens() - 1) / tokens(); }

  /// Query rows of a sequence.
  struct Queries {
    int begin, count;
  };
  /// Those of paged attention are rows of q, whatever cu_seqlens_q holds.
  __device__ Queries queries_of(int batch) const {
    const std::int32_t* bounds = params.cu_seqlens_q + batch;
    if constexpr (!Config::kPaged) return {bounds[0], sequence_length(params.cu_seqlens_q, batch, params.seq_q)};
    const int rows = static_cast<int>(params.splits.rows);
    const int begin = min(max(bounds[0], 0), rows), end = min(max(bounds[1], 0), rows);
    return {begin, min(max(end - begin, 0), params.seq_q)};
  }

  /// Finds the sequence of the q_tile-th tile of a ragged batch, 32 sequences at a time, and makes
  /// q_tile one of that sequence.
  __device__ bool seek(WorkTile& work, int& q_tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int batch = 0; batch < params.batch; batch += 32) {
      const int own = batch + lane < params.batch ? query_tiles(queries_of(batch + lane).count) : 0;
      const int end = Warp::inclusive_sum(own);
      const unsigned reached = __ballot_sync(~0u, q_tile < end);
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        q_tile -= __shfl_sync(~0u, end - own, found);
        set_lengths(work, batch + found);
        return true;
      }
      q_tile -= __shfl_sync(~0u, end, 31);
    }
    return false;
  }
  __device__ void set_lengths(WorkTile& work, int batch) const {
    work.batch = batch;
    const Queries queries = queries_of(batch);
    work.q_begin = queries.begin;
    work.seq_q = queries.count;
    if constexpr (Config::kPaged) {
      work.seq_k = min(max(params.kv_len[batch], 0), params.seq_k);
    } else {
      work.k_begin = params.cu_seqlens_k[batch];
      work.seq_k = sequence_length(params.cu_seqlens_k, batch, params.seq_k);
    }
  }

  const Params& params;
};

}  // namespace fovea::gpu::portable::wide_attention
