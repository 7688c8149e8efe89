// SPDX-License-Identifier: Apache-2.0
/// The work of a wave: rows of one sequence and kv head, and the key tiles of one split.
#pragma once

#include "gpu/hip/cdna/paged_attention/config.hpp"
#include "gpu/hip/cdna/paged_attention/params.hpp"
#include "op/common/band.hpp"

namespace fovea::gpu::cdna::paged_attention {

/// The same in all lanes. Row r of a sequence is token r / group and head kv_head * group + r % group.
struct Work {
  int batch, kv_head, split;
  int tile;                   // the query tile, among those of all sequences
  int row_wave, key_wave;     // of the workgroup
  int q_begin, k_begin;       // the sequence: where its queries begin, and its keys where there is no block table
  int seq_q, seq_k;           // its lengths
  int row, rows;              // the wave's first row, and the rows of the sequence
  int low, high;              // token i sees key j iff low <= j - i <= high
  int begin, end;             // keys that some of the wave's rows see
  int first, last;            // key tiles [first, last) of this split
  int full_first, full_last;  // of these, the ones without a mask
};

/// Elements before the first row of the sequence.
__device__ inline std::int64_t before_rows(const Work& work, const detail::RowStrides& strides) {
  return work.batch * strides.batch + work.q_begin * strides.row;
}
__device__ inline std::int64_t before_keys(const Params& params, const Work& work, const detail::CacheStrides& strides) {
  return params.block_table != nullptr ? 0 : work.batch * strides.block + work.k_begin * strides.token;
}

template <class Config>
class WorkFinder {
 public:
  __device__ explicit WorkFinder(const Params& params_) : params(params_) {}

  /// False where the batch has fewer query tiles than there may be.
  __device__ bool operator()(Work& work) const {
    const int wave = uniform(thread() / kLanes);
    work.tile = workgroup_x();
    work.kv_head = workgroup_y();
    work.split = workgroup_z();
    work.row_wave = Config::kRowWaves > 1 ? wave : 0;
    work.key_wave = Config::kKeyWaves > 1 ? wave : 0;
    int tile = work.tile;
    if (!seek(work, tile)) return false;
    work.rows = work.seq_q * params.group.divisor;
    // Tiles with most keys first, under a causal mask.
    work.row = (query_tiles(work.seq_q) - 1 - tile) * Config::kRowTile + work.row_wave * Config::kWaveRows;
    set_keys(work);
    return true;
  }

 private:
  __device__ int query_tiles(int seq_q) const { return (seq_q * params.group.divisor + Config::kRowTile - 1) / Config::kRowTile; }
  /// Not std::clamp, whose references lie in scratch memory.
  static __device__ int bounded(int x, int bound) { return std::min(std::max(x, 0), bound); }

  struct Range {
    int begin, length;
  };
  /// The range of a sequence's rows: all of `bound` where there is no list.
  static __device__ Range range(const std::int32_t* cu_seqlens, int sequence, int bound) {
    if (cu_seqlens == nullptr) return {0, bound};
    const int begin = cu_seqlens[sequence];
    return {begin, bounded(cu_seqlens[sequence + 1] - begin, bound)};
  }

  /// Finds the sequence of the tile-th query tile of the batch, 64 sequences at a time, and makes `tile` one of that sequence. A lane loads
  /// all numbers of its sequence at once.
  __device__ bool seek(Work& work, int& tile) const {
    for (int batch = 0; batch < params.batch; batch += kLanes) {
      Range q{0, 0}, k{0, 0};
      if (batch + lane() < params.batch) {
        q = range(params.cu_seqlens_q, batch + lane(), params.seq_q);
        k = range(params.cu_seqlens_k, batch + lane(), params.seq_k);
        if (params.kv_len != nullptr) k.length = bounded(params.kv_len[batch + lane()], params.seq_k);
      }
      const int own = query_tiles(q.length), end = prefix_sum(own);
      const std::uint64_t reached = ballot(tile < end);
      if (reached == 0) {
        tile -= of_lane(end, kLanes - 1);
        continue;
      }
      const int found = uniform(std::countr_zero(reached));
      tile = uniform(tile - of_lane(end - own, found));
      work.batch = batch + found;
      work.q_begin = of_lane(q.begin, found);
      work.k_begin = of_lane(k.begin, found);
      work.seq_q = of_lane(q.length, found);
      work.seq_k = of_lane(k.length, found);
      return true;
    }
    return false;
  }

  __device__ void set_keys(Work& work) const {
    const detail::Band band = detail::make_band(params.mask, work.seq_q, work.seq_k);
    work.low = static_cast<int>(band.low);
    work.high = static_cast<int>(band.high);
    work.begin = work.end = work.first = work.last = work.full_first = work.full_last = 0;
    if (work.row >= work.rows) return;
    const int token = params.group.quotient(work.row);
    const int token_end = params.group.quotient(std::min(work.row + Config::kWaveRows, work.rows) - 1) + 1;
    const detail::KeyRange keys = detail::keys_seen_by_some(band, token, token_end, work.seq_k);
    const detail::KvTiles tiles = detail::kv_tiles(band, token, token_end, work.seq_k, Config::kKeyTile);
    const int first = static_cast<int>(tiles.first), count = static_cast<int>(tiles.last) - first;
    work.begin = static_cast<int>(keys.begin);
    work.end = static_cast<int>(keys.end);
    work.first = first + static_cast<int>(std::int64_t{count} * work.split / params.splits);
    work.last = first + static_cast<int>(std::int64_t{count} * (work.split + 1) / params.splits);
    work.full_first = static_cast<int>(tiles.full_first);
    work.full_last = static_cast<int>(tiles.full_last);
  }

  const Params& params;
};

}  // namespace fovea::gpu::cdna::paged_attention
