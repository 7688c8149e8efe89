// SPDX-License-Identifier: Apache-2.0
/// Sizes and shared memory of the kernel whose queries are resident.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/index_logits/shares.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::indexer::resident {

/// `kHeads`: columns of an MMA that a query takes. Each warpgroup multiplies a group of a stage's keys with a bank, half of the resident
/// queries.
template <int kHeads_>
struct Config {
  static constexpr int kHeads = kHeads_, kColumns = 128, kBanks = 2, kKeyGroups = 2, kWarpgroups = kBanks * kKeyGroups;
  static constexpr int kQueriesOfBank = kColumns / kHeads, kQueries = kBanks * kQueriesOfBank;
  static constexpr bool kPaged = false;
  static constexpr int kKeys = kKeyGroups * kMmaRows;       ///< of a stage
  static constexpr int kThreads = 128 * (kWarpgroups + 1);  ///< the first warpgroup loads
  static constexpr int kLoadRegisters = 32, kMathRegisters = 112;
  static constexpr int kKeyBytes = kKeys * kDim, kQueryBytes = kQueries * kHeads * kDim;
  static constexpr int kQueryStages = 3, kKeyStages = 7;
  static constexpr int stage_cost(int) { return 2; }  ///< beginning a group takes half of the time
};

/// A group of queries, and stages of keys that some of them sees. No stages: there are no more work tiles.
struct QueryTile {
  int first_row, rows, first_key, stages;
  int2 whole;  ///< columns that all resident queries see: the first, and behind the last
};

template <class Config>
struct Storage {
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];      // (key, 128)
  alignas(1024) std::byte q[Config::kQueryStages][Config::kQueryBytes];  // (query, head, 128)
  alignas(8) float weights[Config::kQueryStages][Config::kQueries * Config::kHeads];
  float scales[Config::kKeyStages][Config::kKeys];
  alignas(8) int2 seen[Config::kQueryStages][Config::kQueries];  // columns: the first, and behind the last
  QueryTile tiles[Config::kQueryStages];
  Share share;
  typename CostScan<Config>::TempStorage sums;
  // full: a warp arrives twice for queries, when its copies are complete and when it has stored the rest, and twice for scales. A lane
  // arrives for keys. TMA completes the bytes of queries and keys. Math warps wait.
  // empty: a lane of each math warp arrives; the producer waits.
  alignas(8) std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t q_full[Config::kQueryStages], q_empty[Config::kQueryStages];

  __device__ void init() {
    barriers_init(k_full, 65);
    barriers_init(q_full, 64);
    barriers_init(k_empty, 4 * Config::kWarpgroups);
    barriers_init(q_empty, 4 * Config::kWarpgroups);
    fence_barrier_init();
  }
};

}  // namespace fovea::gpu::sm90::indexer::resident
