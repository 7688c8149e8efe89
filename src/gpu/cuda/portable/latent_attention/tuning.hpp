// SPDX-License-Identifier: Apache-2.0
/// Query rows and keys of a tile, in a header that needs nothing of CUDA.
#pragma once

#include <array>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::latent_attention {

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kValueDim = 512;

struct Tuning {
  int row_tile = 16;   ///< query rows
  int key_tile = 32;   ///< keys; of 64 keys, each warp computes a block of scores
  int most_ctas = 1;   ///< of a multiprocessor
  bool coded = false;  ///< blocks: whether rows are coded; other kernels take coded and plain ones
};

/// Fewest rows first, and of equal rows the fastest last. Each has kernels for rows of 576 and of 512 values.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"16", {16, 32, 2}},
    {"32", {32, 32, 1}},
    {"64", {64, 32, 1}},
    {"64_block", {64, 64, 1}},        // H100, 2026-11-27, b128 kv~4096 h128: 640 us, without blocks 856 us
    {"64_codes", {64, 64, 1, true}},  // H200, 2026-11-29, b128 sq2 topk2048 v32_fp8 h128: 854 us, without blocks 1225 us
});

}  // namespace fovea::gpu::portable::latent_attention
