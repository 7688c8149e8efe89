// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/mma.cuh"

namespace fovea::gpu::sm90::latent {

/// Both tiles are made of groups of eight rows, a group of slices of 64 columns, and a slice of eight swizzled rows of 128 bytes: one copy
/// brings eight whole keys, and a page need hold no more.
template <class Config>
struct Storage {
  alignas(1024) std::byte q[kRowTile / 8 * Config::kQueryGroup];
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];  // slice 8 of buffer 0 becomes P of the even tile once QK has read it
  alignas(1024) std::byte p[kRowTile * 128];          // P of the odd tile
  Job jobs[2];                 // by turns: written by the loader before it fills q, read by the math until it has stored the results
  float maximum[2][kRowTile];  // of the rows, in base 2, after the even tile (by warpgroup 0) and after the odd one (by 1)
  float rescale[2][kRowTile];  // what that did to the accumulator
  float sum[2][kRowTile];      // after the last even tile, of those tiles; after the last odd one, of all
  alignas(8) std::uint64_t full[kHalves];  // by the copy engine: a half has arrived
  std::uint64_t empty[kHalves];            // by the four warps of the half's last reader, in each CTA of the cluster
  std::uint64_t q_full;                    // by every load thread
  std::uint64_t q_empty;                   // by every math thread
};

static_assert(kGroups * kKeyGroup == 73728);

}  // namespace fovea::gpu::sm90::latent
