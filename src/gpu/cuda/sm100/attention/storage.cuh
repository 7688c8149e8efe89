// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and who waits for whom.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm100/attention/config.hpp"
#include "gpu/cuda/sm100/barrier.cuh"

namespace fovea::gpu::sm100::attention {

template <class Config>
struct alignas(kSwizzleBytes) Storage {
  std::byte q[kTiles][Config::kQueryBytes];
  std::byte kv[Config::kStages][Config::kStageBytes];  // keys and values in turns

  // From a row's softmax to its correction: the factor of its sums so far. At the end, the sum of its
  // weights and the maximum that they are relative to.
  float statistic[kTiles][kTileRows], maximum[kTiles][kTileRows];

  std::uint64_t q_full[kTiles];
  std::uint64_t kv_full[Config::kStages], kv_empty[Config::kStages];
  std::uint64_t scores_full[kTiles];      // MMAs have computed scores
  std::uint64_t weights_full[kTiles];     // weights are stored, and sums of earlier key tiles rescaled
  std::uint64_t statistics_full[kTiles];  // for each key tile but the first, and at the end
  std::uint64_t statistics_empty[kTiles];
  std::uint64_t sums_full[kTiles];  // of all key tiles
  std::uint32_t tensor_memory;      // its address

  /// By one thread.
  __device__ void init_barriers() {
    for (int tile = 0; tile < kTiles; ++tile) {
      barrier_init(q_full[tile], 1);
      barrier_init(scores_full[tile], 1);
      barrier_init(weights_full[tile], 2 * kTileRows);
      barrier_init(statistics_full[tile], kTileRows);
      barrier_init(statistics_empty[tile], kTileRows);
      barrier_init(sums_full[tile], 1);
    }
    for (int stage = 0; stage < Config::kStages; ++stage) {
      barrier_init(kv_full[stage], 1);
      barrier_init(kv_empty[stage], 1);
    }
    fence_barrier_init();
  }
};

/// Parity of the phase of a barrier that has one for each number.
__device__ constexpr std::uint32_t parity_of(int number) { return static_cast<std::uint32_t>(number % 2); }

}  // namespace fovea::gpu::sm100::attention
