// SPDX-License-Identifier: Apache-2.0
/// The kernels that decode rows of any format as they are loaded.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/cuda/portable/paged_attention/tuning.hpp"

namespace fovea::gpu::portable::paged_attention {

struct DecodedTuning {
  int head_dim = 0;  ///< the largest that it takes
  int row_tile = 0;  ///< rows of a query tile
};

/// Narrowest first. With 64 rows of head dim 256, accumulators leave too few registers for decoding: more rows take more query tiles.
inline constexpr auto kDecodedTunings = std::to_array<Named<DecodedTuning>>({
    {"128_narrow", {128, kNarrowRows}},
    {"128_middle", {128, kMiddleRows}},
    {"128_wide", {128, kWideRows}},
    {"256_narrow", {256, kNarrowRows}},
    {"256_middle", {256, kMiddleRows}},
});

/// The first kernel of this head dim that takes so many rows, else that of the most rows.
constexpr int decoded_row(std::int64_t head_dim, std::int64_t rows) {
  int found = -1;
  for (int i = 0; i < static_cast<int>(kDecodedTunings.size()); ++i) {
    const DecodedTuning& tuning = kDecodedTunings[static_cast<std::size_t>(i)];
    if (tuning.head_dim < head_dim) continue;
    if (found >= 0 && tuning.head_dim != kDecodedTunings[static_cast<std::size_t>(found)].head_dim) break;
    found = i;
    if (tuning.row_tile >= rows) break;
  }
  return found;
}
static_assert(decoded_row(64, 8) == 0 && decoded_row(128, 9) == 1 && decoded_row(128, 64) == 2);
static_assert(decoded_row(136, 1) == 3 && decoded_row(256, 64) == 4);

}  // namespace fovea::gpu::portable::paged_attention
