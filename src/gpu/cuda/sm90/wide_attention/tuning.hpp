// SPDX-License-Identifier: Apache-2.0
/// Tiles of the forward kernel for wide heads.
#pragma once

#include <array>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::wide_attention {

using attention::Tuning;

/// A launch computes up to 256 columns of the result. Beside 128 KB of queries, 32 keys and values
/// have two stages.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"512x256", {512, 256, 2, 32, 2, 2, 1, 216, false, true}},
});

}  // namespace fovea::gpu::sm90::wide_attention
