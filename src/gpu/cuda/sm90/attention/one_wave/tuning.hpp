// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernel for calls of one wave, by head dims.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::sm90::one_wave {

struct Tuning {
  int head_dim_qk = 0, head_dim_v = 0;  ///< the largest that it takes; smaller ones are padded with zeros
  int row_groups = 2;                   ///< warpgroups of 64 query rows each
  int key_groups = 1;                   ///< warpgroups that share keys; with 1, the CTAs of a cluster may share them
  int key_tile = 64;
  int key_tiles = 4;       ///< in shared memory at once
  int turns = 1;           ///< most key tiles of a CTA are that many times more
  int ctas = 8;            ///< most of a cluster
  int least_head_dim = 0;  ///< below it for both, the persistent kernel pads less and is faster

  constexpr int row_tile() const { return 64 * row_groups; }
};

/// Narrowest first; of equal head dims, the row whose warpgroups share keys first.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64_keys", {64, 64, 1, 2, 64, 4}},
    {"64", {64, 64, 2, 1, 64, 4}},
    {"64_turns", {64, 64, 2, 1, 64, 8, 4}},
    {"128_keys", {128, 128, 1, 2, 64, 4}},
    {"128", {128, 128, 2, 1, 64, 4}},
    {"128_turns", {128, 128, 2, 1, 64, 4, 8}},
    {"192x128_turns", {192, 128, 2, 1, 64, 3, 10, 4}},
    {"256_turns", {256, 256, 2, 1, 32, 3, 20, 2, 193}},
});

}  // namespace fovea::gpu::sm90::one_wave
