// SPDX-License-Identifier: Apache-2.0
/// The issuer of MMAs: one lane. They run in the order of their issue:
///   Q0 K(0), Q1 K(0), then for each key tile j: P0 V(j), Q0 K(j + 1), P1 V(j), Q1 K(j + 1).
/// The softmax of one query tile runs beside the MMAs of the other. Scores of key tile j + 1 overwrite the
/// weights of key tile j behind the MMA that reads those.
#pragma once

#include "gpu/cuda/sm100/attention/storage.cuh"
#include "gpu/cuda/sm100/mma.cuh"
#include "gpu/cuda/sm100/tensor_memory.cuh"
#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100::attention {

template <class Config>
class MmaIssuer {
 public:
  __device__ MmaIssuer(Storage<Config>& storage_, std::uint32_t tensor_) : storage(storage_), tensor(tensor_) {}

  __device__ void operator()(int tiles) {
    if (tiles == 0) return;
    PipelineState<Config::kStages> keys;
    barrier_wait(storage.kv_full[keys.stage], keys.parity);
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_wait(storage.q_full[tile], 0);
      multiply_keys(tile, keys.stage);
    }
    mma_commit(storage.kv_empty[keys.stage]);
    for (int number = 0; number < tiles; ++number) {
      PipelineState<Config::kStages> values = keys;
      values.advance();
      keys = values;
      keys.advance();
      turn(number, number + 1 == tiles, values, keys);
    }
  }

 private:
  /// MMAs with the values of a key tile, and with the next keys.
  __device__ void turn(int number, bool last, PipelineState<Config::kStages> values, PipelineState<Config::kStages> keys) {
    barrier_wait(storage.kv_full[values.stage], values.parity);
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_wait(storage.weights_full[tile], parity_of(number));
      tmem_fence_after_sync();
      multiply_values(tile, values.stage, number > 0);
      if (tile == kTiles - 1) mma_commit(storage.kv_empty[values.stage]);
      if (last) {
        mma_commit(storage.sums_full[tile]);
        continue;
      }
      if (tile == 0) barrier_wait(storage.kv_full[keys.stage], keys.parity);
      multiply_keys(tile, keys.stage);
    }
    if (!last) mma_commit(storage.kv_empty[keys.stage]);
  }

  /// Scores of a query tile.
  __device__ void multiply_keys(int tile, int stage) {
    constexpr int kIgnored = 16;  // bytes between slices, for Major::k
    const std::uint64_t q = shared_descriptor(shared_address(storage.q[tile]), kIgnored, kSwizzleBytes);
    const std::uint64_t k = shared_descriptor(shared_address(storage.kv[stage]), kIgnored, kSwizzleBytes);
#pragma unroll
    for (int step = 0; step < Config::kHeadDimQk / kMmaDepth; ++step) {
      constexpr int kSteps = Config::kSliceColumns / kMmaDepth;  // of a slice
      const int at = step / kSteps * Config::kSliceTileBytes + step % kSteps * step_bytes(Major::k);
      mma_ss<typename Config::Element>(tensor_address(tensor, 0, Config::score_column(tile)), advance_descriptor(q, at),
                                       advance_descriptor(k, at), Config::kScoreMma, step > 0);
    }
    mma_commit(storage.scores_full[tile]);
  }

  /// Adds weights times values to the sums of a query tile, or begins them.
  __device__ void multiply_values(int tile, int stage, bool accumulate) {
    const std::uint64_t v = shared_descriptor(shared_address(storage.kv[stage]), Config::kSliceTileBytes, kSwizzleBytes);
#pragma unroll
    for (int step = 0; step < kTileRows / kMmaDepth; ++step) {
      const std::uint32_t weights = tensor_address(tensor, 0, Config::score_column(tile) + step * kMmaDepth / 2);
      mma_ts<typename Config::Element>(tensor_address(tensor, 0, Config::sum_column(tile)), weights,
                                       advance_descriptor(v, step * step_bytes(Major::mn)), Config::kValueMma, accumulate || step > 0);
    }
  }

  Storage<Config>& storage;
  const std::uint32_t tensor;
};

}  // namespace fovea::gpu::sm100::attention
