// SPDX-License-Identifier: Apache-2.0
/// The kernels for packed masks: one for each head dim, with query tiles of kWideRows. A tree of draft tokens has at least as many rows.
#pragma once

#include <array>

#include "gpu/cuda/portable/paged_attention/tuning.hpp"

namespace fovea::gpu::portable::paged_attention {

inline constexpr auto kMaskedTunings = std::to_array<Named<Tuning>>({
    {"64", kTunings[0]},
    {"128", kTunings[1]},
    {"256", kTunings[2]},
});
static_assert(kMaskedTunings.size() == kTunings.size());

}  // namespace fovea::gpu::portable::paged_attention
