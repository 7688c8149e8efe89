// SPDX-License-Identifier: Apache-2.0
/// Sizes and shared memory of the kernel whose queries are resident, and the way of a CTA through its work tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/index_logits/params.hpp"
#include "gpu/cuda/sm90/thread.cuh"
#include "op/index_logits/keys.hpp"

namespace fovea::gpu::sm90::indexer::resident {

/// `kHeads`: columns of an MMA that a query takes. Each warpgroup multiplies a group of a stage's keys with a bank, half of the resident
/// queries.
template <int kHeads_>
struct Config {
  static constexpr int kHeads = kHeads_, kColumns = 128, kBanks = 2, kKeyGroups = 2, kWarpgroups = kBanks * kKeyGroups;
  static constexpr int kQueriesOfBank = kColumns / kHeads, kQueries = kBanks * kQueriesOfBank;
  static constexpr int kKeys = kKeyGroups * kMmaRows;       ///< of a stage
  static constexpr int kThreads = 128 * (kWarpgroups + 1);  ///< the first warpgroup loads
  static constexpr int kLoadRegisters = 32, kMathRegisters = 112;
  static constexpr int kKeyBytes = kKeys * kDim, kQueryBytes = kQueries * kHeads * kDim;
  static constexpr int kQueryStages = 2, kKeyStages = 9;
};

/// Queries of one sequence, and the stages of keys that some of them sees. No stages: there are no more work tiles.
struct QueryTile {
  int first_row, rows, first_key, stages;
};

template <class Config>
struct Storage {
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];                   // (key, 128)
  alignas(1024) std::byte q[Config::kQueryStages][Config::kQueryBytes];               // (query, head, 128)
  alignas(8) float weights[Config::kQueryStages][Config::kQueries * Config::kHeads];  // negative
  float scales[Config::kKeyStages][Config::kKeys];
  alignas(8) int2 seen[Config::kQueryStages][Config::kQueries];  // columns: the first, and behind the last
  QueryTile tiles[Config::kQueryStages];
  // full: a warp arrives for the queries, and a lane for the keys, whose bytes TMA completes. A warp arrives twice for the scales: for its
  // copies and for its stores. Math warps wait.
  // empty: a lane of each math warp arrives; the producer waits.
  alignas(8) std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t q_full[Config::kQueryStages], q_empty[Config::kQueryStages];

  __device__ void init() {
    barriers_init(k_full, 65);
    barriers_init(q_full, 32);
    barriers_init(k_empty, 4 * Config::kWarpgroups);
    barriers_init(q_empty, 4 * Config::kWarpgroups);
    fence_barrier_init();
  }
};

/// The work tiles of a CTA, as a warp of the producer walks through them. Lane i looks at row i.
template <class Config>
class Work {
 public:
  __device__ explicit Work(const Params& params_) : params(params_), index(static_cast<int>(blockIdx.x)) { find(); }

  __device__ bool valid() const { return index < params.work_tiles; }
  __device__ void next() {
    index += static_cast<int>(gridDim.x);
    find();
  }

  QueryTile tile{};
  int begin = 0, end = 0;  ///< columns of the tile
  int2 seen{};             ///< by the lane's row

 private:
  __device__ void find() {
    if (!valid()) return;
    const int group = index / params.key_tiles, sequence = group / params.groups_of_sequence, part = group % params.groups_of_sequence;
    const int rows_of_sequence = static_cast<int>(params.shape.rows_of_sequence());
    begin = index % params.key_tiles * params.keys_of_tile;
    end = min(begin + params.keys_of_tile, static_cast<int>(params.shape.columns));
    tile.first_row = sequence * rows_of_sequence + part * Config::kQueries;
    tile.rows = min(Config::kQueries, rows_of_sequence - part * Config::kQueries);
    seen = {0, 0};
    int first = end, last = begin;
    if (const int lane = lane_index(); lane < tile.rows) {
      const detail::KeyRange range = detail::keys_of_row(params.shape, params.args, tile.first_row + lane);
      seen = {static_cast<int>(range.begin), static_cast<int>(range.end)};
      if (max(seen.x, begin) < min(seen.y, end)) first = max(seen.x, begin), last = min(seen.y, end);
    }
    first = __reduce_min_sync(~0u, first);
    last = __reduce_max_sync(~0u, last);
    tile.first_key = begin + (first - begin) / Config::kKeys * Config::kKeys;
    tile.stages = first < last ? (last - tile.first_key + Config::kKeys - 1) / Config::kKeys : 0;
  }

  const Params& params;
  int index;
};

}  // namespace fovea::gpu::sm90::indexer::resident
