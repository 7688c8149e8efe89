// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA whose warps have four roles.
#pragma once

#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers. Two each of kFull and kDecoded, by turns.
enum : int {
  kScorers = 6,   // the score warpgroup arrives and waits: all scores of a tile are computed
  kFull = 8,      // score warps arrive once P of a tile and all that belongs to it is stored; value warps wait
  kDecoded = 10,  // value warps arrive once a tile is decoded; score warps wait
};

/// Where a tile's keys are. The planner writes it; producers read the addresses, score warps which keys are present.
struct Plan {
  alignas(16) std::uint32_t at[kKeyTile];  // [order(row)]: Token::at; rows that one lane loads lie side by side
  int scales[kKeyTile];                    // [row]: Token::scales
  uint2 present;                           // a bit for each key
  const std::byte* data;                   // of the tile's cache
  bool fp4;                                // what the cache holds, where there are two kinds
  bool end;                                // no tile follows

  static __device__ constexpr int order(int row) { return row % 4 * (kKeyTile / 4) + row / 4; }
};

/// Where there are four roles. Key tiles follow each other whatever their work tiles are.
template <class Config>
struct Storage<Config, Kernel::specialised> {
  // A work tile ends once two more key tiles have been staged. Each may belong to a work tile of its own, announced before.
  static constexpr int kWorkTiles = 4, kPlans = 8;
  static_assert(kWorkTiles > 2);
  using WorkTiles = PipelineState<kWorkTiles>;
  using Plans = PipelineState<kPlans>;
  using Tiles = PipelineState<2>;
  alignas(1024) std::byte staging[kStagingBytes];                 // codes of the next tile: [group][piece][8 rows][128]
  alignas(1024) std::byte q[kRowTile / 8 * Config::kQueryGroup];  // [group][slice][8 rows][64]
  alignas(1024) std::byte k[2][kGroups * kKeyGroup];  // [stage][group][slice][8 keys][64]; slice 8 becomes P (of 512 columns: is P)
  alignas(16) std::uint32_t scales[2][kKeyTile][4];   // [part][row][word] of the staged codes; of fp4 what belongs to the part
  bool fp4[2];                                        // [part]: what is staged
  Plan plans[kPlans];                                 // a ring
  KeyList list;                                       // of the work tile that is planned: here, it costs the planner no registers
  WorkTile work_tiles[kWorkTiles];                    // a ring, like the next line:
  float sum[kWorkTiles][kRowTile], maximum[kWorkTiles][kRowTile], largest[kWorkTiles][kRowTile];  // [.][row] at a work tile's end
  int grown[2][4];             // [stage][warp]: whether rows of the warp are to be rescaled first
  float rescale[2][kRowTile];  // [stage][row]: and by what
  // full: the planner arrives (of the first work tile, the warp that loads queries); score warps, value warps and that warp wait. empty:
  // score threads, value threads and the warp that loads queries arrive once they are done with the work tile; the planner waits.
  alignas(8) std::uint64_t work_full[kWorkTiles], work_empty[kWorkTiles];
  // full: the planner's threads arrive; producers and score warps wait. empty: producers' threads and a lane of each score warp arrive
  // once they have read the plan; the planner waits.
  std::uint64_t plan_full[kPlans], plan_empty[kPlans];
  // [part] Every producer thread arrives, and its copies do, once a part of the codes is staged; value warps wait.
  std::uint64_t staged[2];
  std::uint64_t staged_free[2];  // [part] every value thread arrives once it has read the part; producers wait
  // [stage] Of 576 columns: every value warp arrives once the tile is multiplied, so P may become the rotary part; value warps wait.
  std::uint64_t empty[2];
  std::uint64_t tiles_done;       // every score and value thread arrives after the last tile; the warp that loads partial results waits
  std::uint64_t partial_full[2];  // [stage] a load warp and the copy engine arrive once half of a partial result is here; value warps wait
  std::uint64_t partial_empty;    // every value thread arrives once it has added a partial result; the load warp waits
  std::uint64_t q_full;           // the warp that loads queries arrives; score warps wait
  std::uint64_t q_empty;          // every score thread arrives after its last scores of a work tile; the warp that loads queries waits

  /// Waits until the work tile is announced.
  __device__ const WorkTile& work_at(std::uint32_t count) const {
    barrier_wait(shared_address(&work_full[WorkTiles::stage_of(count)]), WorkTiles::parity_of(count));
    __syncwarp();  // lanes may have parted, and meet a named barrier next
    return work_tiles[WorkTiles::stage_of(count)];
  }
};

}  // namespace fovea::gpu::sm90::latent
