// SPDX-License-Identifier: Apache-2.0
/// Shared memory of a CTA of dense attention, with its barriers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/dense/tile_scheduler.cuh"

namespace fovea::gpu::sm90::dense {

/// Named barriers; 0 is __syncthreads().
enum : int {
  kWarpgroup = 1,         // to 4: the threads of one warpgroup
  kSchedulerBarrier = 5,  // to 7: a warpgroup waits; the one before it arrives once its MMAs are issued
};

/// Number of the 64 rows that a warpgroup has in the query tile of a slot of the ring. Three warpgroups
/// take turns: those with the first rows skip key tiles under a causal mask, and a warpgroup that is ahead
/// in every work tile would find no keys loaded.
template <class Config>
__device__ constexpr int rows_of_warpgroup(int warpgroup, int work_slot) {
  if constexpr (Config::kRowsInTurn) {
    const int sum = warpgroup + work_slot;
    return sum < kWorkTiles ? sum : sum - kWorkTiles;
  } else {
    return warpgroup;
  }
}

/// Slots of a work tile: in the ring of work tiles, and of a warpgroup's queries.
struct WorkSlots {
  int work, queries;
};

/// Whether lists name the key tiles of a work tile (gpu/cuda/common/block_lists.cuh): its key tiles are then
/// places in the lists.
template <class Config>
inline constexpr bool kListed = requires {
  Config::kLists;
};

/// In the place of a kernel's data of lists.
struct NoLists {};

/// Whether a kernel has a packed mask, whose bits hide keys beside the band.
template <class Config>
inline constexpr bool kMasked = requires {
  Config::kPackedMask;
};

/// Config::WorkTileData of kernels that keep nothing in shared memory beside the work tile itself.
struct NoWorkTileData {};

/// A kernel's data before all tiles. Memcheck takes an operand without swizzle for as many bytes as it has elements, whatever its
/// strides. An operand whose elements are read twice therefore has other memory behind it.
template <class Config>
struct FirstDataOf {
  struct None {};
  using Type = None;
};
template <class Config>
requires requires { typename Config::FirstData; }
struct FirstDataOf<Config> {
  using Type = typename Config::FirstData;
};

inline constexpr int kTransposingWarps = 2;

/// Slices of key tiles of e4m3 values by rows, which transpose_values.cuh makes value tiles.
template <class Config, int kStages = Config::kRawStages>
struct RawValues {
  alignas(1024) std::byte slices[kStages][Config::kKeySliceBytes];  // (key, 128)
  // full: a lane of the producer arrives, and TMA completes its bytes; transposing warps wait.
  // empty: a lane of each of them arrives; the producer waits.
  alignas(8) std::uint64_t full[kStages], empty[kStages];

  __device__ void init_barriers() {
    barriers_init(full, 1);
    barriers_init(empty, kTransposingWarps);
  }
};
template <class Config>
struct RawValues<Config, 0> {
  __device__ void init_barriers() {}
};

template <class Config>
struct Storage : FirstDataOf<Config>::Type {
  static constexpr int kWarpgroups = Config::kTuning.warpgroups, kQuerySlots = Config::kQueryBuffers * kWarpgroups;

  alignas(1024) std::byte q[kQuerySlots][Config::kQueryBytes];           // (slice, row, 64), of a warpgroup
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];      // (slice, key, 64)
  alignas(1024) std::byte v[Config::kValueStages][Config::kValueBytes];  // likewise
  [[no_unique_address]] RawValues<Config> raw;
  WorkTile work_tiles[kWorkTiles];
  // full: the scheduler arrives; producers and the warp that loads WorkTileData wait.
  // empty: a thread of each consumer warpgroup arrives once its results have left registers; the scheduler waits.
  alignas(8) std::uint64_t work_full[kWorkTiles], work_empty[kWorkTiles];
  // full: a lane of a producer arrives, and TMA completes its bytes; consumers wait. With RawValues, a lane
  // of each transposing warp arrives instead (v).
  // empty: a lane of each consumer warp arrives (q: of one warpgroup, or one thread with staged results; k, v: of all CTAs of the
  // cluster); a producer waits.
  std::uint64_t q_full[kQuerySlots], q_empty[kQuerySlots];
  std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
  [[no_unique_address]] typename Config::WorkTileData work_tile_data;  // [kWorkTiles]

  /// One thread calls it, before any other uses a barrier.
  __device__ void init_barriers() {
    barriers_init(work_full, 1);
    barriers_init(work_empty, kWarpgroups);
    barriers_init(q_full, 1);
    barriers_init(q_empty, Config::kStagedResults ? 1 : 4);
    barriers_init(k_full, 1);
    barriers_init(v_full, Config::kRawStages > 0 ? kTransposingWarps : 1);
    barriers_init(k_empty, 4 * kWarpgroups * Config::kCluster);
    barriers_init(v_empty, 4 * kWarpgroups * Config::kCluster);
    raw.init_barriers();
    if constexpr (requires { work_tile_data.init_barriers(); }) work_tile_data.init_barriers();
    fence_barrier_init();
  }
};

}  // namespace fovea::gpu::sm90::dense
