// SPDX-License-Identifier: Apache-2.0
/// Rows of attention_backward/tuning.hpp that have a kernel with ALiBi.
#pragma once

#include <algorithm>

#include "gpu/cuda/sm90/attention_backward/tuning.hpp"

namespace fovea::gpu::sm90::attention_backward::alibi {

/// The first rows of the dense table. A kernel has the tiles of its row there.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64}},
    {"96", {96, 96}},
    {"128", {128, 128}},
});
static_assert(std::equal(kTunings.begin(), kTunings.end(), attention_backward::kTunings.begin(), [](const auto& row, const auto& dense) {
  return row.name == dense.name && row.head_dim_qk == dense.head_dim_qk;
}));

}  // namespace fovea::gpu::sm90::attention_backward::alibi
