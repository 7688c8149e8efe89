// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA, with its barriers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "gpu/cuda/sm90/attention/one_wave/config.hpp"
#include "gpu/cuda/sm90/barrier.cuh"

namespace fovea::gpu::sm90::one_wave {

/// Results over the keys of a warpgroup.
template <class Config>
struct Partial {
  float out[Config::kRowTile][Config::kHeadDimV + 8];  // four rows of a warp's stores lie in different banks
  float2 stats[Config::kRowTile];                      // the maximum, and the sum relative to it
};

/// A lane's share of a warp's partial result: pieces of 16 bytes, those of the lanes side by side.
struct PartialPiece {
  std::uint32_t words[32][4];
};
/// From the other CTAs of the cluster, for each warp whose rows this CTA stores.
template <class Config>
struct ClusterPartial {
  PartialPiece pieces[Config::kPartials][Config::kPieces];
  alignas(8) std::uint64_t full;  // counts the bytes of `pieces`
};
struct None {};

template <class Config>
struct Storage {
  alignas(1024) std::byte q[Config::kQueryBytes];  // (slice, row, 64); in a cluster then the results of these rows
  union {
    struct {
      alignas(1024) std::byte k[Config::kKeyTiles][Config::kKeyBytes];    // likewise
      alignas(1024) std::byte v[Config::kKeyTiles][Config::kValueBytes];  // likewise
    };
    // Partial results of warpgroups that share keys, once these have been read.
    std::conditional_t<Config::kSharedKeys, Partial<Config>, None> partial[Config::kKeyGroups];
  };
  std::conditional_t<Config::kSharedKeys, None, ClusterPartial<Config>> cluster;
  // All threads arrive once their copies are complete.
  alignas(8) std::uint64_t q_full, k_full[Config::kKeyTiles], v_full[Config::kKeyTiles];
  std::uint64_t empty[Config::kKeyTiles];  // each warp arrives once it has read a key tile and its values

  /// One thread calls it, before any other uses a barrier. `bytes`: of `cluster`.
  __device__ void init_barriers(int bytes) {
    barrier_init(shared_address(&q_full), Config::kThreads);
    barriers_init(k_full, Config::kThreads);
    barriers_init(v_full, Config::kThreads);
    if constexpr (Config::kInTurns) barriers_init(empty, Config::kWarps);
    if constexpr (!Config::kSharedKeys) barrier_init(shared_address(&cluster.full), 1);
    fence_barrier_init();
    if constexpr (!Config::kSharedKeys) {
      if (bytes > 0) barrier_arrive_expect_tx(shared_address(&cluster.full), bytes);
    }
  }
};

}  // namespace fovea::gpu::sm90::one_wave
