// SPDX-License-Identifier: Apache-2.0
/// What both kernels have in common in shared memory.
#pragma once

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// Defined in the kernel's own folder.
template <class Config, Kernel = Config::kKernel>
struct Storage;

/// Named barriers of both kernels. 0 is that of the whole CTA.
enum : int { kWarpgroup = 4 };  // and 5: all threads of one warpgroup arrive and wait

/// A partial result that this CTA reduces, in shared memory that its key tiles have left: half of each math warp's pieces in the even tile,
/// the others in the odd one. In each tile: [math warp][piece][word][lane], then in the even one [math warp] RowStats.
struct StagedPartial {
  static constexpr int kPieces = kPartialPieces / 2, kBytes = kPieces * kPieceWords * 32 * sizeof(uint2);  // of a math warp
  static constexpr int kRowsAt = kMathWarps * kBytes;  // of RowStats, from the even tile's begin on
  static constexpr int kRowBytes = kPartialRowStats * kMathWarpRows * sizeof(float);
};
static_assert(StagedPartial::kRowsAt + kMathWarps * StagedPartial::kRowBytes <= kGroups * kKeyGroup);

// A key tile is [group][slice][8 keys][64 columns], with the 128-byte swizzle. So one copy loads eight whole keys, and a page may be as
// small.

static_assert(kGroups * kKeyGroup == 73728);

/// Bytes from the even tile's begin to the first slice of the i-th half of a pair of tiles.
__device__ constexpr int place_of(int i) { return buffer_of(i) * kGroups * kKeyGroup + half_of(i) * kHalfSlices * kGroupBytes; }

}  // namespace fovea::gpu::sm90::latent
