// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <type_traits>

#include "gpu/cuda/sm90/latent_attention/keys.cuh"
#include "gpu/cuda/sm90/latent_attention/work.cuh"
#include "gpu/cuda/sm90/mma.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers, with who arrives and who waits. 0 is that of the whole CTA.
enum : int {
  kEvenReady = 1,   // maximum[0] if it has grown, and P of the even tile, with the last also sum[0]: warpgroup 0 arrives, 1 waits
  kOddReady = 2,    // maximum[1] if it has grown, and P of the odd tile, with the last also sum[1]: 1 arrives, 0 waits
  kEvenScored = 3,  // the scores of the next even tile are issued, so those of the odd one queue behind them: 0 arrives, 1 waits
  kWarpgroup = 4,   // and 5: one warpgroup alone
  kScorers = 6,     // the score warpgroup alone
  // Of four roles, two each, by turns.
  kFull = 8,      // P of a tile and all that belongs to it are there: score warps arrive, value warps wait
  kDecoded = 10,  // a tile is decoded: value warps arrive, score warps wait
};

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

/// Where two warpgroups score by turns.
template <class Config>
struct TurnsStorage {
  alignas(1024) std::byte p[kRowTile * 128];  // P of the odd tile
  alignas(1024) std::byte q[kRowTile / 8 * Config::kQueryGroup];
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];  // slice 8 of buffer 0 becomes P of the even tile once QK has read it
  Job jobs[2];                               // by turns: written by the loader before it fills q, read by the math until it gives back
                                             // the queries of the next
  Job loading[Config::kLoadThreads / 32];    // of each load warp: kept here, it costs them no registers
  KeyList lists[Config::kLoadThreads / 32];  // likewise
  float maximum[2][kRowTile];                // of the rows, as warpgroup 0 and as 1 last told it: it does when one has changed
  float sum[2][kRowTile];                    // after the last even tile, of those tiles; after the last odd one, of all
  float largest[kRowTile];                   // scores of the even tiles, with the last of them (not Load::boxes)
  alignas(8) std::uint8_t present[2][8];     // a bit for each key of the even and the odd tile: whether there is one (not Load::boxes)
  alignas(8) std::uint64_t full[kHalves];    // by the copy engine, or by every load thread: the half has arrived
  std::uint64_t empty[kHalves];              // by the four warps of the half's last reader, in each CTA of the cluster
  std::uint64_t collected[2];                // by a load warp and the copy engine: half of a partial result is in this tile
  std::uint64_t added;                       // by every math thread: it is added, the tiles may take the next part's
  std::uint64_t q_full;                      // by every load thread
  std::uint64_t q_empty;                     // by every math thread
};

/// Where a tile's keys are, as told by the warp that plans to those that bring them, and which there are, to those that score.
struct Plan {
  alignas(16) std::uint32_t at[kKeyTile];  // Token::at; rows that a lane brings lie side by side
  int scales[kKeyTile];                    // Token::scales, row by row
  uint2 present;                           // a bit for each key, for who scores
  const std::byte* data;                   // of the tile's cache
  bool fp4;                                // what it holds, where there are two kinds
  bool end;                                // there are no more tiles

  static __device__ constexpr int order(int row) { return row % 4 * (kKeyTile / 4) + row / 4; }
};

/// Things that come by turns lie in rings, each with a barrier: its slot, and the parity of the phase in which the count-th is there.
template <int kSlots>
struct Ring {
  static __device__ constexpr int slot(std::uint32_t count) { return count % kSlots; }
  static __device__ constexpr std::uint32_t parity(std::uint32_t count) { return count / kSlots & 1; }
};

/// Where there are four roles. Tiles follow each other whatever their jobs are.
template <class Config>
struct RolesStorage {
  // A job ends once two more tiles have been staged, each of which may be a job of its own: they have to be told before.
  static constexpr int kJobs = 4, kPlans = 8;
  static_assert(kJobs > 2);
  using Jobs = Ring<kJobs>;
  using Plans = Ring<kPlans>;
  using Tiles = Ring<2>;
  alignas(1024) std::byte staging[kStagingBytes];  // the next tile's codes
  alignas(1024) std::byte q[kRowTile / 8 * Config::kQueryGroup];
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];  // slice 8 of each becomes P; of 512 columns it is never anything else
  alignas(16) std::uint32_t scales[2][kKeyTile][4];   // of the staged codes, once for each part of them (of fp4 what is of the part)
  bool fp4[2];                                        // what has been staged, each part
  Plan plans[kPlans];                                 // by turns
  KeyList list;                                       // of the job that is planned: kept here, it costs that warp no registers
  Job jobs[kJobs];                                    // by turns, like these:
  float sum[kJobs][kRowTile], maximum[kJobs][kRowTile], largest[kJobs][kRowTile];  // of a job's rows at its end
  int grown[2][4];                                                                 // whether rows of each warp are to be rescaled first
  float rescale[2][kRowTile];                                                      // and by what
  alignas(8) std::uint64_t job_full[kJobs];  // by who plans, the first by who brings queries: there is a job, or none any more
  std::uint64_t job_empty[kJobs];            // by score and value threads and a load warp: they are done with it
  std::uint64_t plan_full[kPlans];           // by the planner
  std::uint64_t plan_empty[kPlans];          // by who brings keys, and a lane of each score warp: it has been read
  std::uint64_t staged[2];                   // by who brings keys, and their copies: a part of the codes is there
  std::uint64_t staged_free[2];              // by every value thread: it has been read
  std::uint64_t empty[2];      // by every value warp: the tile has been multiplied, P may become the rotary part (of 576 columns)
  std::uint64_t tiles_done;    // by every score and value thread: the tiles may take what is to be collected
  std::uint64_t collected[2];  // by a load warp and the copy engine: half of a partial result is in this tile
  std::uint64_t added;         // by every value thread: it is added, the tiles may take the next part's
  std::uint64_t q_full;        // by one load warp
  std::uint64_t q_empty;       // by every score thread

  /// Waits until it is told.
  __device__ const Job& job_at(std::uint32_t count) const {
    barrier_wait(shared_address(&job_full[Jobs::slot(count)]), Jobs::parity(count));
    __syncwarp();  // lanes may have parted, and meet a named barrier next
    return jobs[Jobs::slot(count)];
  }
};

template <class Config>
using Storage = std::conditional_t<Config::kFourRoles, RolesStorage<Config>, TurnsStorage<Config>>;

static_assert(kGroups * kKeyGroup == 73728);

/// Where the left-most slice of the i-th half of a pair of tiles lies, from the even tile's begin on.
__device__ constexpr int place_of(int i) { return buffer_of(i) * kGroups * kKeyGroup + half_of(i) * kHalfSlices * kGroupBytes; }

}  // namespace fovea::gpu::sm90::latent
