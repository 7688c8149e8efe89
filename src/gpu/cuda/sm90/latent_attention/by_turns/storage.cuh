// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA whose two math warpgroups score by turns.
#pragma once

#include "gpu/cuda/sm90/latent_attention/storage.cuh"

namespace fovea::gpu::sm90::latent {

/// Named barriers, with who arrives and who waits.
enum : int {
  kEvenReady = 1,   // maximum[0] if it has grown, and P of the even tile, with the last also sum[0]: warpgroup 0 arrives, 1 waits
  kOddReady = 2,    // maximum[1] if it has grown, and P of the odd tile, with the last also sum[1]: 1 arrives, 0 waits
  kEvenScored = 3,  // the scores of the next even tile are issued, so those of the odd one queue behind them: 0 arrives, 1 waits
};

/// Where two warpgroups score by turns.
template <class Config>
struct Storage<Config, Kernel::by_turns> {
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

}  // namespace fovea::gpu::sm90::latent
