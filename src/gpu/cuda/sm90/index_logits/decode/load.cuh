// SPDX-License-Identifier: Apache-2.0
/// The producer's warps: queries with their weights, and keys with their scales.
#pragma once

#include <limits>

#include "gpu/cuda/common/copy_async.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/decode/scheduler.cuh"
#include "gpu/cuda/sm90/index_logits/decode/storage.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::indexer::decode {

/// Publishes which stages of each sequence are in the share, and loads its queries and their weights, by a warp. A sequence without stages
/// ends the share.
template <class Config>
__device__ __forceinline__ void load_queries(Storage<Config>& storage, const Params& params, TileScheduler<Config> work) {
  const int lane = lane_index();
  for (PipelineState<Config::kQueryStages> at;; at.advance(), work.next()) {
    const int row = work.sequence * Config::kQueries;
    const std::uint32_t full = shared_address(&storage.q_full[at.stage]);
    barrier_wait(shared_address(&storage.q_empty[at.stage]), at.parity ^ 1);
    if (lane == 0) {
      storage.sequences[at.stage] = {row, work.length, work.from, work.to};
      barrier_arrive_expect_tx(full, work.valid() ? Config::kQueryBytes : 0);
      if (work.valid()) tma_load(shared_address(storage.q[at.stage]), &params.q, {0, 0, 0, 0, row}, full);
    }
#pragma unroll
    for (int i = 0; i < Config::kColumns / 32; ++i) {
      const int column = i * 32 + lane, query = column / Config::kHeads, head = column % Config::kHeads;
      if (work.valid() && head < static_cast<int>(params.shape.heads)) {
        copy_async_word(shared_address(&storage.weights[at.stage][column]),
                        params.args.weights + (row + query) * params.shape.weights_row + head);
      }
    }
    copy_async_arrive(full);
    if (!work.valid()) return;
  }
}

/// Scales of keys whose block the cache does not have.
struct alignas(16) AbsentScales {
  float values[kMostBox]{};
  constexpr AbsentScales() {
    for (float& value : values) value = std::numeric_limits<float>::quiet_NaN();
  }
};
static __device__ const AbsentScales kAbsentScales;

/// Keys and their scales, by a warp, for every kProducers-th stage of the share. A lane looks up one box of a batch of stages.
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
        work(work_),
        stage(first_own()) {
    at.stage = producer;
    look_up();
  }

  __device__ __forceinline__ void run() {
    while (count > 0) {
      const int stages = count;
      __syncwarp();  // lane 0 has read the batch before
      storage.boxes[producer][lane] = box;
      __syncwarp();
      look_up();
      if (lane == 0) load(stages * boxes);
    }
  }

 private:
  static constexpr int kProducers = Config::kProducers;

  __device__ __forceinline__ int first_own() const { return work.from + turns_until<kProducers>(work.passed, producer); }

  /// Looks up the next batch: up to 32 boxes.
  __device__ __forceinline__ void look_up() {
    const int batch = 1 << (box_bits - 1);
    while (work.valid() && stage >= work.to) {
      work.next();
      stage = first_own();
    }
    count = work.valid() ? min((work.to - stage + kProducers - 1) / kProducers, batch) : 0;
    const int column = (stage + (lane >> (6 - box_bits)) * kProducers) * Config::kKeys + ((lane & (boxes - 1)) << box_bits);
    box = {-1, 0, kAbsentScales.values};
    stage += batch * kProducers;
    if (count == 0 || column >= min(work.length, params.room)) return;
    const int page = params.page.quotient(column), token = column - page * params.page.divisor;
    const int block = params.args.block_table[work.sequence * params.shape.table_stride + page];
    if (block >= 0 && block < params.shape.blocks) box = {block, token, params.args.k_scale + block * params.shape.scale_block + token};
  }

  /// By one lane: a stage takes few instructions, and operands of copies are uniform.
  __device__ __forceinline__ void load(int count_of_boxes) {
    KeyBox following = storage.boxes[producer][0];
#pragma unroll 1
    for (int i = 0; i < count_of_boxes; ++i) {
      const KeyBox own = following;
      following = storage.boxes[producer][(i + 1) % 32];
      const std::uint32_t full = shared_address(&storage.k_full[at.stage]);
      const int key = (i & (boxes - 1)) << box_bits;
      if (key == 0) {
        barrier_wait(shared_address(&storage.k_empty[at.stage]), at.parity ^ 1);
        barrier_arrive_expect_tx(full, Config::kKeyBytes + Config::kKeys * static_cast<int>(sizeof(float)));
      }
      tma_load(shared_address(storage.k[at.stage]) + key * kDim, &params.k, {0, own.token, 0, 0, own.block}, full);
      bulk_load(shared_address(&storage.scales[at.stage][key]), own.scales, params.box * 4, full);
      if (key + params.box == Config::kKeys) advance<kProducers>(at);
    }
  }

  Storage<Config>& storage;
  const Params& params;
  const int producer, lane, box_bits, boxes;  ///< of a stage
  TileScheduler<Config> work;
  int stage;   ///< the first one behind the batch
  KeyBox box;  ///< the lane's, of the next batch
  int count;   ///< of its stages
  PipelineState<Config::kKeyStages> at;
};

}  // namespace fovea::gpu::sm90::indexer::decode
