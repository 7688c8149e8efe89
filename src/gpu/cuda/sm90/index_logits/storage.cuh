// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and its way through the work tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/index_logits/shares.cuh"
#include "gpu/cuda/sm90/thread.cuh"

namespace fovea::gpu::sm90::indexer {

/// Rows of a work tile that see some of its keys, a bit for each. None: there are no more work tiles.
struct KeyTile {
  unsigned rows;
  int first_row, first_key;
};

template <class Config>
struct Storage {
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];      // (key, 128)
  alignas(1024) std::byte q[Config::kQueryStages][Config::kQueryBytes];  // (head, 128)
  alignas(8) float weights[Config::kQueryStages][Config::kHeads];        // negative
  int2 seen[Config::kQueryStages];                                       // keys of the tile: the first, and behind the last
  KeyTile tiles[Config::kKeyStages];
  Share share;
  typename CostScan<Config>::TempStorage sums;
  // full: a lane of the producer (k) or all of them (q) arrive, and TMA completes its bytes; math warps wait.
  // empty: a lane of each math warp arrives; the producer waits.
  alignas(8) std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t q_full[Config::kQueryStages], q_empty[Config::kQueryStages];

  __device__ void init() {
    barriers_init(k_full, 1);
    barriers_init(q_full, 32);
    barriers_init(k_empty, 4 * Config::kWarpgroups);
    barriers_init(q_empty, 4 * Config::kWarpgroups);
    fence_barrier_init();
  }
};

/// The work tiles of a CTA, as a warp of the producer walks through them: stages of its share. Lane i looks at row i.
template <class Config>
class TileScheduler {
 public:
  __device__ TileScheduler(const Params& params, const Share& share) : work(params, share) { find(); }

  __device__ bool valid() const { return work.valid(); }
  __device__ void next() {
    work.stages.first_key += Config::kKeys;
    if (--work.stages.count == 0) work.next();
    find();
  }

  Group group{};
  int first_key = 0;
  int2 seen{};               ///< by the lane's row, in keys of the tile
  unsigned rows_seeing = 0;  ///< a bit for each row that sees some

 private:
  __device__ void find() {
    group = work.group;
    first_key = work.stages.first_key;
    seen = {max(work.seen.x - first_key, 0), min(work.seen.y - first_key, Config::kKeys)};
    rows_seeing = __ballot_sync(~0u, seen.x < seen.y);
  }

  GroupScheduler<Config> work;
};

}  // namespace fovea::gpu::sm90::indexer
