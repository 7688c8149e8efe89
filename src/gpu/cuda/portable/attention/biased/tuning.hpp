// SPDX-License-Identifier: Apache-2.0
/// Tiles of the kernel for ALiBi, biases and dropout: few, so that there are few kernels.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/cuda/portable/attention/tuning.hpp"

namespace fovea::gpu::portable::attention {

struct BiasedTuning : Tuning {
  bool takes_bias = true, takes_dropout = true;  ///< else ALiBi and what is left
};

/// Registers spill with 128 keys at head dim 64, and at head dim 128 with 64 keys, a bias and dropout.
inline constexpr auto kBiasedTunings = std::to_array<Named<BiasedTuning>>({
    {"64_alibi", {{64, 64, 4, 2, 128, 1, false, 1}, false, false}},
    {"64", {{64, 64, 4, 2, 64, 1, false, 1}}},
    {"128_alibi", {{128, 128, 4, 2, 64, 2, false, 2}, false, false}},  // 227 KB: two CTAs
    {"128_without_bias", {{128, 128, 4, 2, 64, 1, false, 2}, false}},  // 163 KB: two CTAs
    {"128_small", {{128, 128, 4, 2, 32, 1, false, 1}}},                // 99 KB: two CTAs; 64 KB: one
    {"256_small", {{256, 256, 4, 1, 16, 1, false, 1}}},                // 99 KB: two CTAs; 64 KB: one
});

/// The first row that takes the options and these head dims, both at most 256, on a device with `shared_bytes` for a CTA.
constexpr int biased_index(std::int64_t head_dim_qk, std::int64_t head_dim_v, int shared_bytes, bool has_bias, bool has_dropout) {
  int index = 0;
  for (const BiasedTuning& row : kBiasedTunings) {
    const bool is_wide = row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v;
    const bool takes = (row.takes_bias || !has_bias) && (row.takes_dropout || !has_dropout);
    if (is_wide && takes && row.resident * row.shared_bytes() <= shared_bytes) break;
    ++index;
  }
  return index;
}

}  // namespace fovea::gpu::portable::attention
