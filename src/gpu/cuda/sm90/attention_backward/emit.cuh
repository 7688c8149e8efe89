// SPDX-License-Identifier: Apache-2.0
/// The emitter: a thread that adds a CTA's sums to those of other key tiles, in turn, by the copy engine.
#pragma once

#include "gpu/cuda/common/global_memory.cuh"
#include "gpu/cuda/sm90/attention_backward/storage.cuh"
#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/tma.cuh"

namespace fovea::gpu::sm90::attention_backward {

/// Waits until `turns` is `turn`. What was written before is seen then, by ordinary loads and by copies.
__device__ inline void await_turn(const int* turns, int turn) {
  flag_wait(turns, turn);
  fence_global_for_async();
}

template <class Config>
__device__ inline void emit_all(const Params& params, Storage<Config>& storage) {
  for (std::uint32_t parity = 0;; parity ^= 1) {
    barrier_wait(shared_address(&storage.sums_full), parity);
    const int cell = storage.emitted_cell, rank = storage.emitted_rank;
    if (cell < 0) return;
    float* const to = params.dq_sums + std::int64_t{cell} * Config::kSumsOfTile;
    const std::uint32_t from = shared_address(storage.sums);
    if (rank == 0) {
      bulk_store(to, from, sizeof(storage.sums));
    } else {
      await_turn(params.turns + cell, rank);
      bulk_reduce_add(to, from, sizeof(storage.sums));
    }
    tma_store_wait_read();
    barrier_arrive(shared_address(&storage.sums_empty));
    tma_store_wait();
    flag_set(params.turns + cell, rank + 1);
  }
}

}  // namespace fovea::gpu::sm90::attention_backward
