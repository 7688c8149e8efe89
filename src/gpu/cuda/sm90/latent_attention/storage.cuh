// SPDX-License-Identifier: Apache-2.0
/// What the shared memory of both kernels has in common.
#pragma once

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/thread.cuh"
#include "gpu/cuda/sm90/wgmma.cuh"

namespace fovea::gpu::sm90::latent {

/// Of the kernel's own folder.
template <class Config, Kernel = Config::kKernel>
struct Storage;

/// Named barriers of both kernels. 0 is that of the whole CTA.
enum : int { kWarpgroup = 4 };  // and 5: one warpgroup alone

/// A partial result that this CTA collects, in the tiles when their keys are done with: of each math warp, half of the pieces in the even
/// tile, the others in the odd one.
struct Collected {
  static constexpr int kPieces = kPartialPieces / 2, kBytes = kPieces * kPieceWords * 32 * sizeof(uint2);  // of a math warp
  static constexpr int kRowsAt = kMathWarps * kBytes;                                                      // of RowStats, in the even tile
  static constexpr int kRowBytes = kPartialRowStats * kMathWarpRows * sizeof(float);
};
static_assert(Collected::kRowsAt + kMathWarps * Collected::kRowBytes <= kGroups * kKeyGroup);

// Both tiles are made of groups of eight rows, a group of slices of 64 columns, and a slice of eight swizzled rows of 128 bytes: one copy
// brings eight whole keys, and a page need hold no more.

static_assert(kGroups * kKeyGroup == 73728);

/// Where the left-most slice of the i-th half of a pair of tiles lies, from the even tile's begin on.
__device__ constexpr int place_of(int i) { return buffer_of(i) * kGroups * kKeyGroup + half_of(i) * kHalfSlices * kGroupBytes; }

}  // namespace fovea::gpu::sm90::latent
