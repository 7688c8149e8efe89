// SPDX-License-Identifier: Apache-2.0
/// The tiles of latent attention over packed rows. None is measured.
#pragma once

#include "gpu/hip/cdna/paged_attention/tuning.hpp"

namespace fovea::gpu::cdna::latent_attention::packed {

using paged_attention::Tuning;

/// v32_fp8: as plain rows of 576.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    {"latent_v32_decode", {576, 1, 4, 16, 1, 512}},
    {"latent_v32_prefill", {576, 1, 1, 16, 1, 512}},
});

}  // namespace fovea::gpu::cdna::latent_attention::packed
