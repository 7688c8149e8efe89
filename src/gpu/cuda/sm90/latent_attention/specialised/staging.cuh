// SPDX-License-Identifier: Apache-2.0
/// Layout of codes between the cache and the warps that decode them.
#pragma once

#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/specialised/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// [group][piece][8 rows][128 bytes]: codes, then the rotary part. Chunks of 16 bytes of odd rows change halves, so that a read of half a
/// piece of eight rows meets every bank once.
struct Staged {
  static constexpr int kPieces = 5, kGroupStride = kPieces * kGroupBytes;
  static_assert(kGroups * kGroupStride == kStagingBytes);

  static __device__ std::uint32_t chunk(int row, int piece, int chunk) {
    return row / 8 * kGroupStride + piece * kGroupBytes + row % 8 * 128 + (chunk ^ row % 2 * 4) * 16;
  }
  /// Pieces are staged in two parts, each with the scales: of each half of the columns the first two slices, then the others with the
  /// rotary part.
  static __device__ constexpr int part_of(int piece) { return piece + 1 == kPieces ? 1 : piece % 2; }
};

/// The kind of rows of the main cache. An extra cache's are the same, or fp4: half a piece then, where the others have a whole one, so that
/// parts lie in the same places.
constexpr Row main_row(Row row) { return row == Row::v41_and_fp4 ? Row::v41 : row; }

/// What is staged of a row, and where it lies from the row's begin in the cache.
template <Row kRow>
struct StagedRow {
  static constexpr PackedFormat kFormat = format_of<main_row(kRow)>();
  static constexpr int kCodes = kFormat.codes, kBytes = kCodes + 2 * kFormat.rope;
  static constexpr int kPieces = (kBytes + 127) / 128;
  static constexpr int kRopeSlice = kCodes / kSlice, kRopeChunk = kCodes / 16;
  static_assert(kFormat.code_type == CodeType::e4m3 && kPieces <= Staged::kPieces);
  static constexpr int kScaleBytes = kFormat.scale_bytes;

  static constexpr int offset(int piece) { return piece * 128 + (piece * 128 < kCodes ? 0 : kFormat.rope_at(0) - kCodes); }
  static constexpr int chunks(int piece) { return kBytes - piece * 128 < 128 ? (kBytes - piece * 128) / 16 : 8; }
};

}  // namespace fovea::gpu::sm90::latent
