// SPDX-License-Identifier: Apache-2.0
/// The shared memory of the pingpong kernel.
#pragma once

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers.
enum : int {
  kEvenReady = 1,   // warpgroup 0 arrives with P of the even tile, maximum[0] if it grew, and with the last tile sum[0]; 1 waits
  kOddReady = 2,    // warpgroup 1 arrives with P of the odd tile, maximum[1] if it grew, and with the last tile sum[1]; 0 waits
  kEvenScored = 3,  // warpgroup 0 arrives once it has issued the next even tile's scores; 1 waits, so its MMAs queue behind them
};

template <class Config>
struct Storage<Config, Kernel::pingpong> {
  alignas(1024) std::byte p[kQueryTile * 128];                      // P of the odd tile: [row][64 keys]
  alignas(1024) std::byte q[kQueryTile / 8 * Config::kQueryGroup];  // [group][slice][8 rows][64]
  // [even, odd tile][group][slice][8 keys][64]. Slice 8 of the even tile becomes its P once its scores are complete.
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];
  WorkTile work_tiles[2];  // A load warp writes one before q is filled; consumers read it until they release the next one's q
  WorkTile loading[Config::kLoadThreads / 32];  // [load warp]: shared memory saves registers
  KeyList lists[Config::kLoadThreads / 32];     // [load warp]
  float maximum[2][kQueryTile];                 // [warpgroup][row], published by the warpgroup when it grows
  float sum[2][kQueryTile];               // [tile][row]: [0] of the even tiles, after the last of them; [1] of all, after the last odd one
  float largest[kQueryTile];              // [row]: scores of the even tiles, after the last of them (gathered keys)
  alignas(8) std::uint8_t present[2][8];  // [tile][group]: a bit for each key, clear for absent ones (gathered keys)
  // [half of a tile] full: the copy engine, or every load thread, arrives once the half is loaded; consumers wait.
  // empty: the four warps of the half's last reader arrive, in each CTA of the cluster; the producer waits.
  alignas(8) std::uint64_t full[kHalves], empty[kHalves];
  // [tile] A load warp and the copy engine arrive once half of a partial result lies in the tile; consumers wait.
  std::uint64_t partial_full[2];
  std::uint64_t partial_empty;  // every consumer thread arrives once it has added a partial result; the load warp waits
  std::uint64_t q_full;         // every load thread, and the copy engine, arrives once q and the work tile are written; consumers wait
  std::uint64_t q_empty;        // every consumer thread arrives after its last scores of a work tile; the load warps wait
};

}  // namespace fovea::gpu::sm90::latent
