// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernels for ALiBi, biases and dropout: few, so that there are few kernels.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/cuda/portable/attention_backward/tuning.hpp"

namespace fovea::gpu::portable::attention_backward {

/// Each fits 99 KB. With tiles of more columns registers spill.
inline constexpr auto kBiasedTunings = std::to_array<Named<Tuning>>({
    {"64", {64, 64, {2, 32, 2}, {2, 32, 2}, true, 1, {4, 32, 2}}},
    {"128", {128, 128, {2, 32, 2}, {1, 32, 2}, true, 1, {4, 32, 2}}},
});

/// Shared memory of the fused kernel of a row.
constexpr int biased_fused_bytes(const Tuning& row) {
  return row.fused.shared_bytes(row.head_dim_qk + row.head_dim_v) + 2 * row.fused.keys() * row.fused.queries() / 8 + 32;
}

/// The first row that takes the head dims, both at most those of the last.
constexpr int biased_index(std::int64_t head_dim_qk, std::int64_t head_dim_v) { return head_dim_qk > 64 || head_dim_v > 64; }

}  // namespace fovea::gpu::portable::attention_backward
