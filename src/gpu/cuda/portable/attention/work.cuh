// SPDX-License-Identifier: Apache-2.0
/// The work tile of a CTA. CTAs start in the order of their index: head by head, which keeps the keys and values of few heads
/// in L2, and query tiles with most keys first.
#pragma once

#include <bit>

#include "gpu/cuda/common/block_lists.cuh"
#include "gpu/cuda/common/work_tile.cuh"
#include "gpu/cuda/portable/attention/params.hpp"

namespace fovea::gpu::portable::attention {

struct WorkTile : gpu::WorkTile {
  const void *keys, *values;  // row 0 of the sequence, of the head of both
};

/// With the key of philox.
struct BiasedWorkTile : WorkTile {
  detail::PhiloxKey random;
};

/// The key tiles of a work tile by their places in its lists, from the last to the first: the current one and the next.
template <class Config>
class KeyTiles {
 public:
  __device__ KeyTiles(const Params& params, const WorkTile& work) : listed(params.lists, work) {
    if (work.last > work.first) ahead = listed.at(work.last - 1);
  }
  /// Before each key tile.
  __device__ void advance(int place, int first) {
    now = ahead;
    if (place > first) ahead = listed.at(place - 1);
  }
  __device__ int current(int) const { return now.tile; }
  __device__ int next(int) const { return ahead.tile; }
  __device__ const std::int32_t* bits() const { return now.bits; }

 private:
  const ListedTiles listed;
  ListedTile now, ahead;
};
/// Without lists a place is the number of the key tile.
template <class Config>
requires(!Config::kLists) class KeyTiles<Config> {
 public:
  __device__ KeyTiles(const Params&, const WorkTile&) {}
  __device__ void advance(int, int) {}
  __device__ int current(int place) const { return place; }
  __device__ int next(int place) const { return place; }
  __device__ const std::int32_t* bits() const { return nullptr; }
};

template <class Config>
class WorkFinder {
 public:
  __device__ explicit WorkFinder(const Params& params_) : params(params_) {}

  /// The work tile of this CTA, by a whole warp. False where a ragged batch has fewer than there may be.
  __device__ bool operator()(WorkTile& work) const {
    const WorkNumbers& numbers = params.numbers;
    const int index = static_cast<int>(blockIdx.x);
    int head = numbers.q_tiles.quotient(index), q_tile = index - head * params.q_tiles;
    work.split = 0;
    if (params.splits.count > 1) {
      work.split = head % params.splits.count;
      head /= params.splits.count;
    }
    work.batch = numbers.heads.quotient(head);  // 0 where ragged
    work.head = (head - work.batch * numbers.heads.divisor) << params.packed_shift;
    work.q_begin = work.k_begin = 0;
    work.seq_q = params.seq_q;
    work.seq_k = params.seq_k;
    if (params.cu_seqlens_q != nullptr && !seek(work, q_tile)) return false;
    work.token = (query_tiles(work.seq_q) - 1 - q_tile) << log2_tokens();
    find_keys(work);
    if constexpr (Config::kLists) {
      work.done = false;
      work.first = 0;
      work.last = ListedTiles(params.lists, work).count;
    }
    if (params.splits.count > 1) work.keep_split(params.splits.count);
    const int kv_head = numbers.heads_per_kv.quotient(work.head);
    work.keys = row_of_head<typename Config::Element>(params.k, work.batch, work.k_begin, kv_head);
    work.values = row_of_head<typename Config::ValueElement>(params.v, work.batch, work.k_begin, kv_head);
    return true;
  }

 private:
  static constexpr int kLog2Rows = std::countr_zero(unsigned{Config::kRowTile}), kLog2Keys = std::countr_zero(unsigned{Config::kKeyTile});
  static_assert(1 << kLog2Rows == Config::kRowTile && 1 << kLog2Keys == Config::kKeyTile);

  /// Tokens of a query tile.
  __device__ int log2_tokens() const { return kLog2Rows - params.packed_shift; }
  __device__ int query_tiles(int seq_q) const { return (seq_q + (1 << log2_tokens()) - 1) >> log2_tokens(); }

  __device__ void find_keys(WorkTile& work) const {
    const detail::NarrowBand band(params.numbers.mask, work.seq_q, work.seq_k);
    work.low = band.low;
    work.high = band.high;
    const detail::NarrowTiles tiles = band.tiles(kLog2Keys, work.token, min(work.token + (1 << log2_tokens()), work.seq_q));
    work.first = tiles.first;
    work.last = tiles.last;
    work.full_first = tiles.full_first;
    work.full_last = tiles.full_last;
  }

  /// Finds the sequence of the q_tile-th tile of a ragged batch, 32 sequences at a time, and makes q_tile one of that sequence.
  __device__ bool seek(WorkTile& work, int& q_tile) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    for (int batch = 0; batch < params.batch; batch += 32) {
      const int own = batch + lane < params.batch ? query_tiles(sequence_length(params.cu_seqlens_q, batch + lane, params.seq_q)) : 0;
      int end = own;
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const int other = __shfl_up_sync(~0u, end, distance);
        if (lane >= distance) end += other;
      }
      const unsigned reached = __ballot_sync(~0u, q_tile < end);
      if (reached != 0) {
        const int found = __ffs(static_cast<int>(reached)) - 1;
        q_tile -= __shfl_sync(~0u, end - own, found);
        work.batch = batch + found;
        work.q_begin = params.cu_seqlens_q[work.batch];
        work.k_begin = params.cu_seqlens_k[work.batch];
        work.seq_q = sequence_length(params.cu_seqlens_q, work.batch, params.seq_q);
        work.seq_k = sequence_length(params.cu_seqlens_k, work.batch, params.seq_k);
        return true;
      }
      q_tile -= __shfl_sync(~0u, end, 31);
    }
    return false;
  }

  const Params& params;
};

}  // namespace fovea::gpu::portable::attention
