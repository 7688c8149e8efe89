// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda/sm90/attention/config.hpp"
#include "gpu/cuda/sm90/work_list.cuh"

namespace fovea::gpu::sm90::attention {

/// Named barriers. 0 is that of the whole CTA.
enum : int {
  kWarpgroup = 1,  // to 3: a warpgroup alone
  kTurn = 4,       // to 6: the warpgroup before arrives once its products are issued; this one waits
};

template <class Config>
struct Storage {
  alignas(1024) std::byte q[Config::kQueryBuffers][Config::kQueryBytes];  // (slice, row, 64); then the results of these rows
  alignas(1024) std::byte k[Config::kKeyStages][Config::kKeyBytes];       // (slice, key, 64)
  alignas(1024) std::byte v[Config::kValueStages][Config::kValueBytes];   // likewise
  WorkTile work_tiles[kWorkTiles];
  // full: the planner arrives, the producer waits. empty: a thread of each consumer warpgroup arrives once it is done; the planner waits.
  alignas(8) std::uint64_t work_full[kWorkTiles], work_empty[kWorkTiles];
  // full: the producer's lane and the copy engine arrive, consumers wait. empty: the producer waits; a thread of each consumer warpgroup
  // arrives (q, once its results are read), or a lane of each consumer warp (k, v).
  std::uint64_t q_full[Config::kQueryBuffers], q_empty[Config::kQueryBuffers];
  std::uint64_t k_full[Config::kKeyStages], k_empty[Config::kKeyStages];
  std::uint64_t v_full[Config::kValueStages], v_empty[Config::kValueStages];
};

}  // namespace fovea::gpu::sm90::attention
