// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, and its way through the work tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/thread.cuh"
#include "op/index_logits/keys.hpp"

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

/// The work tiles of a CTA, as a warp of the producer walks through them. Lane i looks at row i.
template <class Config>
class WorkTile {
 public:
  __device__ explicit WorkTile(const Params& params_) : params(params_), index(static_cast<int>(blockIdx.x)) { find(); }

  __device__ bool valid() const { return index < params.work_tiles; }
  __device__ void next() {
    index += static_cast<int>(gridDim.x);
    find();
  }

  int first_row = 0, rows = 0, first_key = 0;
  int2 seen{};               ///< by the lane's row, in keys of the tile
  unsigned rows_seeing = 0;  ///< a bit for each row that sees some

 private:
  __device__ void find() {
    if (!valid()) return;
    const int tile = index % params.key_tiles, group = index / params.key_tiles;
    const int sequence = group / params.groups_of_sequence, part = group % params.groups_of_sequence;
    const int rows_of_sequence = static_cast<int>(params.shape.rows_of_sequence());
    first_row = sequence * rows_of_sequence + part * params.rows_of_group;
    rows = min(params.rows_of_group, rows_of_sequence - part * params.rows_of_group);
    first_key = tile * Config::kKeys;
    seen = {0, 0};
    if (const int lane = lane_index(); lane < rows) {
      const detail::KeyRange range = detail::keys_of_row(params.shape, params.args, first_row + lane);
      seen.x = max(static_cast<int>(range.begin) - first_key, 0);
      seen.y = min(static_cast<int>(range.end) - first_key, Config::kKeys);
    }
    rows_seeing = __ballot_sync(~0u, seen.x < seen.y);
  }

  const Params& params;
  int index;
};

}  // namespace fovea::gpu::sm90::indexer
