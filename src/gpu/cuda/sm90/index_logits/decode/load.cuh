// SPDX-License-Identifier: Apache-2.0
/// The producer's warps: queries with their weights, and keys with their scales.
#pragma once

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/decode/scheduler.cuh"
#include "gpu/cuda/sm90/index_logits/decode/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::indexer::decode {

/// Queries and their weights, by a warp.
template <class Config>
__device__ __forceinline__ void load_queries(Storage<Config>& storage, const Params& params, TileScheduler<Config> work) {
  const int lane = lane_index();
  PipelineState<Config::kQueryStages> at;
  for (; work.valid(); work.next(), at.advance()) {
    const int row = work.sequence * Config::kQueries;
    const std::uint32_t full = shared_address(&storage.q_full[at.stage]);
    barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
    if (lane == 0) {
      barrier_arrive_expect_tx(full, Config::kQueryBytes);
      tma_load(shared_address(storage.q[at.stage]), &params.q, {0, 0, 0, 0, row}, full);
    }
#pragma unroll
    for (int i = 0; i < Config::kColumns / 32; ++i) {
      const int column = i * 32 + lane, query = column / Config::kHeads, head = column % Config::kHeads;
      if (head < static_cast<int>(params.shape.heads)) {
        copy_async_word(shared_address(&storage.weights[at.stage][column]),
                        params.args.weights + (row + query) * params.shape.weights_row + head);
      }
    }
    copy_async_arrive(full);
  }
}

/// Keys and their scales, by a warp, for every kProducers-th stage of a sequence. A lane looks up one box of a batch of stages.
template <class Config>
class KeyLoader {
 public:
  __device__ __forceinline__ KeyLoader(Storage<Config>& storage_, const Params& params_, int producer_, const TileScheduler<Config>& work_)
      : storage(storage_),
        params(params_),
        producer(producer_),
        lane(lane_index()),
        box_bits(box_bits_of(params_)),
        boxes(Config::kKeys >> box_bits),
        work(work_) {
    at.stage = producer;
    next = place(0);
  }

  __device__ __forceinline__ void run() {
    const int batch = 1 << (box_bits - 1);  // own stages: 32 boxes
    while (work.valid()) {
      const int count = detail::round_up(work.to - work.from, Config::kWarpgroups) / kProducers;
#pragma unroll 1
      for (int begin = 0; begin < count; begin += batch) {
        const int2 own = next;
        if (begin + batch < count) next = place(begin + batch);
        const unsigned absent = __ballot_sync(~0u, own.x < 0);
        const int last = min(begin + batch, count);
#pragma unroll 1
        for (int i = begin; i < last; ++i) load(i, count, own, (i - begin) * boxes, absent);
      }
      work.next();
      next = place(0);
    }
#pragma unroll 1
    for (int i = 0; i < Config::kWarpgroups / kProducers; ++i) {
      producer_acquire({.marks = KeyTile::kStop}, 0);
      next_stage();
    }
  }

 private:
  static constexpr int kProducers = Config::kProducers;

  /// The block and the token in it of the lane's box, in a batch of own stages. Boxes that no query sees have no block.
  __device__ __forceinline__ int2 place(int first) const {
    const int stage = work.from + producer + kProducers * (first + (lane >> (6 - box_bits)));
    const int column = stage * Config::kKeys + ((lane & (boxes - 1)) << box_bits);
    if (column >= min(work.length, params.room)) return {-1, 0};
    const int block = params.page.quotient(column);
    const int number = params.args.block_table[work.sequence * params.shape.table_stride + block];
    return {number < params.shape.blocks ? max(number, -1) : -1, column - block * params.page.divisor};
  }

  /// `first_lane`: has the stage's first box. `absent`: a bit for each lane's box without a block.
  __device__ __forceinline__ void load(int i, int count, int2 own, int first_lane, unsigned absent) {
    const int stage = work.from + producer + kProducers * i;
    const bool none = stage >= work.to;
    const int marks = (stage < work.from + Config::kWarpgroups ? KeyTile::kBegins : 0) |
                      (stage >= work.from + kProducers * count - Config::kWarpgroups ? KeyTile::kEnds : 0) | (none ? KeyTile::kNone : 0);
    absent >>= first_lane;
    const int scales = __popc(~absent & ((1u << boxes) - 1)) << box_bits, box = lane - first_lane;
    producer_acquire({work.sequence * Config::kQueries, stage * Config::kKeys, work.length, static_cast<std::uint8_t>(absent),
                      static_cast<std::uint8_t>(marks)},
                     none ? 0 : Config::kKeyBytes + scales * 4);
    if (!none && box >= 0 && box < boxes) copy(own, box);
    next_stage();
  }

  __device__ __forceinline__ void producer_acquire(const KeyTile& tile, int bytes) {
    barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
    if (lane == 0) {
      storage.tiles[at.stage] = tile;
      barrier_arrive_expect_tx(shared_address(&storage.k_full[at.stage]), bytes);
    }
    __syncwarp();
  }
  __device__ __forceinline__ void next_stage() {
    at.stage += kProducers;
    if (at.stage >= Config::kKeyStages) at.stage -= Config::kKeyStages, at.parity ^= 1;
  }

  /// Boxes outside of the keys arrive as zeros.
  __device__ __forceinline__ void copy(int2 own, int box) {
    const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
    tma_load(shared_address(storage.k[at.stage]) + (box << box_bits) * kDim, &params.k, {0, own.y, 0, 0, own.x}, full);
    if (own.x < 0) return;
    bulk_load(shared_address(&storage.scales[at.stage][box << box_bits]), params.args.k_scale + own.x * params.shape.scale_block + own.y,
              params.box * 4, full);
  }

  Storage<Config>& storage;
  const Params& params;
  const int producer, lane, box_bits, boxes;  ///< of a stage
  TileScheduler<Config> work;
  int2 next;  ///< place of the lane's box in the next batch
  PipelineState<Config::kKeyStages> at;
};

}  // namespace fovea::gpu::sm90::indexer::decode
