// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernel for block masks by head dims. They fit 64 KB of shared memory, which every device has.
#pragma once

#include "gpu/cuda/portable/attention/tuning.hpp"

namespace fovea::gpu::portable::block_attention {

using attention::Tuning;

/// Narrowest first. The key tile divides a key block, and the query tile a query block: 64 serves most.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, 4, 1, 64, 1, false, 1}},
    {"128", {128, 128, 4, 1, 64, 1, false, 1}},
});

}  // namespace fovea::gpu::portable::block_attention
