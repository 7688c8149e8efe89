// SPDX-License-Identifier: Apache-2.0
/// The shared memory of the specialised kernel, and the layout of staged codes in it.
#pragma once

#include "gpu/cuda/sm90/barrier.cuh"
#include "gpu/cuda/sm90/latent_attention/config.hpp"
#include "gpu/cuda/sm90/latent_attention/decode.cuh"
#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"

namespace fovea::gpu::sm90::latent {

/// Layout of a tile's codes in shared memory: [group][piece][8 rows][128 bytes], codes, then the rotary part. Odd rows swap the halves of a
/// piece, so that a read of half a piece of eight rows meets every bank once.
struct Staged {
  static constexpr int kPieces = 5, kGroupStride = kPieces * kGroupBytes;
  static_assert(kGroups * kGroupStride == kStagingBytes);

  static __device__ std::uint32_t chunk(int row, int piece, int chunk) {
    return row / 8 * kGroupStride + piece * kGroupBytes + row % 8 * 128 + (chunk ^ row % 2 * 4) * 16;
  }
  /// A tile is staged in two sides, each with the scales: the left two slices of each half of the columns, then the right two slices with
  /// the rotary part.
  static __device__ constexpr int side_of(int piece) { return piece + 1 == kPieces ? 1 : piece % 2; }
};

/// The kind of rows in the main cache. Rows of an extra cache are of the same kind or fp4. An fp4 row fills half of each piece, so that
/// sides lie in the same places.
constexpr Row main_row(Row row) { return row == Row::v41_and_fp4 ? Row::v41 : row; }

/// The staged bytes of a row, and their offsets from the row's begin in the cache.
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

/// Named barriers. kFull and kDecoded have one for each stage.
enum : int {
  kScorers = 6,   // the score warpgroup arrives and waits: all scores of a tile are computed
  kFull = 8,      // score warps arrive once P of a tile and all that belongs to it is stored; value warps wait
  kDecoded = 10,  // value warps arrive once a tile is decoded; score warps wait
};

/// Addresses of a tile's keys. The planner writes it; producers read the addresses, and score warps read which keys are present.
struct Plan {
  alignas(16) std::uint32_t at[kKeyTile];  // [order(row)]: Token::at; the rows of one lane are neighbours
  int scales[kKeyTile];                    // [row]: Token::scales
  uint2 present;                           // a bit for each key
  const std::byte* data;                   // of the tile's cache
  bool fp4;                                // whether the cache holds fp4 (kTwoKinds)
  bool end;                                // no tile follows

  static __device__ constexpr int order(int row) { return row % 4 * (kKeyTile / 4) + row / 4; }
};

/// Key tiles follow each other without a gap between work tiles.
template <class Config>
struct Storage<Config, Kernel::specialised> {
  // A work tile ends after two more key tiles have been staged. Each of these may belong to another work tile, published before.
  static constexpr int kWorkTiles = 4, kPlans = 8;
  static_assert(kWorkTiles > 2);
  using WorkTiles = PipelineState<kWorkTiles>;
  using Plans = PipelineState<kPlans>;
  using Tiles = PipelineState<2>;
  alignas(1024) std::byte staging[kStagingBytes];                   // codes of the next tile: [group][piece][8 rows][128]
  alignas(1024) std::byte q[kQueryTile / 8 * Config::kQueryGroup];  // [group][slice][8 rows][64]
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];  // [stage][group][slice][8 keys][64]; slice 8 becomes P (of 512 columns: is P)
  alignas(16) std::uint32_t scales[2][kKeyTile][4];   // [side][row][word]: scales of the staged codes; for fp4 only those of the side
  bool fp4[2];                                        // [side]: whether fp4 is staged
  Plan plans[kPlans];                                 // a ring
  KeyList list;                                       // of the work tile that is planned; shared memory saves registers
  WorkTile work_tiles[kWorkTiles];                    // a ring, like the next line
  float sum[kWorkTiles][kQueryTile], maximum[kWorkTiles][kQueryTile], largest[kWorkTiles][kQueryTile];  // [.][row] at a work tile's end
  int grown[2][4];               // [stage][warp]: whether rows of the warp are to be rescaled first
  float rescale[2][kQueryTile];  // [stage][row]: and by what
  // full: the planner arrives (the warp that loads queries, for the first work tile); score warps, value warps and that warp wait. empty:
  // score threads, value threads and the warp that loads queries arrive once they are done with the work tile; the planner waits.
  alignas(8) std::uint64_t work_full[kWorkTiles], work_empty[kWorkTiles];
  // full: the planner's threads arrive; producers and score warps wait. empty: producers' threads and a lane of each score warp arrive
  // once they have read the plan; the planner waits.
  std::uint64_t plan_full[kPlans], plan_empty[kPlans];
  // [side] Every producer thread arrives, and again when its copies are complete; value warps wait.
  std::uint64_t staged[2];
  std::uint64_t staged_free[2];  // [side] every value thread arrives once it has read the codes; producers wait
  // [stage] Every value warp arrives once the tile is multiplied, so that the rotary part may overwrite P (576 columns); value warps wait.
  std::uint64_t empty[2];
  std::uint64_t tiles_done;       // every score and value thread arrives after the last tile; the warp that loads partial results waits
  std::uint64_t partial_full[2];  // [stage] a load warp and the copy engine arrive once half of a partial result is here; value warps wait
  std::uint64_t partial_empty;    // every value thread arrives once it has added a partial result; the load warp waits
  std::uint64_t q_full;           // the warp that loads queries arrives; score warps wait
  std::uint64_t q_empty;          // every score thread arrives after its last scores of a work tile; the warp that loads queries waits

  /// Waits until the work tile is published.
  __device__ const WorkTile& work_at(std::uint32_t count) const {
    barrier_wait(shared_address(&work_full[WorkTiles::stage_of(count)]), WorkTiles::parity_of(count));
    __syncwarp();  // lanes may have diverged, and a named barrier follows
    return work_tiles[WorkTiles::stage_of(count)];
  }
};

}  // namespace fovea::gpu::sm90::latent
