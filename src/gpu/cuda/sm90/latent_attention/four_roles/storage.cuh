// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA whose warps have four roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers, with who arrives and who waits. Two each of kFull and kDecoded, by turns.
enum : int {
  kScorers = 6,   // the score warpgroup alone
  kFull = 8,      // P of a tile and all that belongs to it are there: score warps arrive, value warps wait
  kDecoded = 10,  // a tile is decoded: value warps arrive, score warps wait
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

/// Where there are four roles. Tiles follow each other whatever their jobs are.
template <class Config>
struct Storage<Config, Kernel::four_roles> {
  // A job ends once two more tiles have been staged, each of which may be a job of its own: they have to be told before.
  static constexpr int kJobs = 4, kPlans = 8;
  static_assert(kJobs > 2);
  using Jobs = RingPosition<kJobs>;
  using Plans = RingPosition<kPlans>;
  using Tiles = RingPosition<2>;
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
    barrier_wait(shared_address(&job_full[Jobs::stage_of(count)]), Jobs::parity_of(count));
    __syncwarp();  // lanes may have parted, and meet a named barrier next
    return jobs[Jobs::stage_of(count)];
  }
};

}  // namespace fovea::gpu::sm90::latent
