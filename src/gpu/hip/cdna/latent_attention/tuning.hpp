// SPDX-License-Identifier: Apache-2.0
/// The tiles of latent attention, for the kernels of paged attention. None is measured.
#pragma once

#include "gpu/hip/cdna/paged_attention/tuning.hpp"

namespace fovea::gpu::cdna::latent_attention {

using paged_attention::Tuning;

/// V is the first 512 channels of K. Their accumulators take 128 registers of a lane, so a SIMD has one wave.
inline constexpr auto kTunings = std::to_array<Named<Tuning>>({
    // 16 rows, whose keys the waves divide: each has 18 KB of K and 16 KB of V in flight.
    {"latent_512_decode", {512, 1, 4, 16, 1, 512}},
    {"latent_576_decode", {576, 1, 4, 16, 1, 512}},
    // 64 rows: the waves of a workgroup find the same keys in the cache (L1).
    {"latent_512_prefill", {512, 1, 1, 16, 1, 512}},
    {"latent_576_prefill", {576, 1, 1, 16, 1, 512}},
});

/// `head_dim`: 512 or 576.
constexpr std::size_t tuning_index(std::int64_t head_dim, bool prefill) { return (prefill ? 2 : 0) + (head_dim == 576 ? 1 : 0); }

}  // namespace fovea::gpu::cdna::latent_attention
