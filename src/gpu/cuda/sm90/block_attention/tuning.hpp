// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernel for block masks by head dims.
#pragma once

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::block_attention {

using attention::Tuning;

/// Narrowest first. The key tile divides a key block, and the query tile a query block.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 2, 128, 4, 4, 2, 216, true, true}},
    {"128", {128, 128, 2, 128, 2, 3, 2, 216, true, true}},
});

/// The first row that takes these head dims.
constexpr int tuning_index(std::int64_t head_dim_qk, std::int64_t head_dim_v) {
  int index = 0;
  for (const Tuning& row : kTunings) {
    if (row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::sm90::block_attention
