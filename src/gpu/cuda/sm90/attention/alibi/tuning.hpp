// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel with ALiBi by head dims.
#pragma once

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::attention::alibi {

/// Those of attention/tuning.hpp, but for clusters and head dim 256, whose key tiles of 64 are not timed here.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 3, 128, 4, 4, 2, 160, false, false}},
    {"96", {96, 96, 3, 128, 2, 3, 1, 160, false, false}},
    {"128_tall", {128, 128, 3, 128, 2, 3, 1, 160, false, false, 4096}},
    {"128", {128, 128, 2, 128, 2, 3, 2, 216, true, true}},
    {"256", {256, 256, 2, 80, 2, 2, 1, 232, false, true}},
});

}  // namespace fovea::gpu::sm90::attention::alibi
