// SPDX-License-Identifier: Apache-2.0
/// Where codes lie between the cache and the warps that decode them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Groups of eight rows, each of four pieces of 128 codes and one of the rotary part. Chunks of 16 bytes of odd rows change halves, so that
/// who reads half a piece of eight rows meets every bank once.
struct Staged {
  static constexpr int kPieces = 4, kGroupStride = (kPieces + 1) * kGroupBytes;
  static_assert(kGroups * kGroupStride == kStagingBytes);

  static __device__ std::uint32_t chunk(int row, int piece, int chunk) {
    return row / 8 * kGroupStride + piece * kGroupBytes + row % 8 * 128 + (chunk ^ row % 2 * 4) * 16;
  }
  /// Pieces come and go in two parts, each with the scales: of each half of the columns the first two slices, then the others with the
  /// rotary part.
  static __device__ constexpr int part_of(int piece) { return piece == kPieces ? 1 : piece % 2; }
};

}  // namespace fovea::gpu::sm90::latent
