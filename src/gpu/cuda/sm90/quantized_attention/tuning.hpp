// SPDX-License-Identifier: Apache-2.0
/// Tiles of the 8-bit kernel by head dim and type of values.
#pragma once

#include <array>

#include "gpu/cuda/sm90/attention/tuning.hpp"

namespace fovea::gpu::sm90::quantized_attention {

using attention::Tuning;

/// Narrowest first. A row serves its own head dim alone.
inline constexpr auto kTuningsE4m3 = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 4, 128, 3, 3, 2, 112, false, false}},  // 64 keys: 3 % faster at s1024 causal, else 6 to 11 % slower
    {"96", {96, 96, 3, 128, 2, 2, 2, 160, false, false}},
    {"128", {128, 128, 3, 128, 3, 3, 2, 160, false, false}},
});
inline constexpr auto kTuningsF16 = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 3, 128, 4, 4, 2, 160, false, false}},
    {"96", {96, 96, 3, 128, 2, 2, 2, 160, false, false}},
    {"128", {128, 128, 3, 128, 2, 2, 2, 160, false, false}},
});

constexpr attention::Rows tunings_of(bool e4m3_values) {
  return e4m3_values ? attention::Rows(kTuningsE4m3) : attention::Rows(kTuningsF16);
}

}  // namespace fovea::gpu::sm90::quantized_attention
