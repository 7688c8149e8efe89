// SPDX-License-Identifier: Apache-2.0
/// Query rows of a query tile, in a header that needs nothing of CUDA.
#pragma once

#include <array>

#include "gpu/common/tuning_table.hpp"

namespace fovea::gpu::portable::latent_attention {

inline constexpr int kWarps = 8, kThreads = 32 * kWarps;
inline constexpr int kKeys = 32;  // of a key tile
inline constexpr int kValueDim = 512;

struct Tuning {
  int row_groups = 1;  ///< groups of 16 query rows, each of some of the warps
  int most_ctas = 1;   ///< of a multiprocessor
};

/// Fewest rows first. Each has kernels for rows of 576 and of 512 values.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"16", {1, 2}},
    {"32", {2, 1}},
    {"64", {4, 1}},
});

}  // namespace fovea::gpu::portable::latent_attention
