// SPDX-License-Identifier: Apache-2.0
/// The kernels for packed masks, by names of kKernels. Tiles for head dim 64 and 256 would spill.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/cuda/sm90/paged_attention/tuning.hpp"

namespace fovea::gpu::sm90::paged_attention {

struct Masked {};

inline constexpr auto kMaskedKernels = std::to_array<Named<Masked>>({
    {"128", {}},
});

/// The kernel with the name of one here.
constexpr int kernel_of_masked(int index) { return row_named(kKernels, kMaskedKernels[static_cast<std::size_t>(index)].name); }

inline constexpr int kMasked128 = 0;  // the index of the only one
inline constexpr int kMaskedHeadDim = 128;

}  // namespace fovea::gpu::sm90::paged_attention
