// SPDX-License-Identifier: Apache-2.0
/// The rows of kTunings that have a kernel for packed masks: few, so that there are few kernels.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "gpu/cuda/portable/attention/tuning.hpp"

namespace fovea::gpu::portable::attention {

struct Masked {};

inline constexpr auto kMaskedTunings = std::to_array<Named<Masked>>({
    {"64", {}},
    {"128", {}},
    {"128_small", {}},
    {"192x128", {}},
    {"256", {}},
    {"256_small", {}},
});

/// The row of kTunings with the name of one here.
constexpr int row_of_masked(int index) { return row_named(kTunings, kMaskedTunings[static_cast<std::size_t>(index)].name); }

/// The first of these rows that takes the head dims, both at most 256, on a device with `shared_bytes` for a CTA.
constexpr int masked_index(std::int64_t head_dim_qk, std::int64_t head_dim_v, int shared_bytes) {
  int index = 0;
  const auto takes = [&](const Tuning& row) {
    return row.head_dim_qk >= head_dim_qk && row.head_dim_v >= head_dim_v && row.resident * row.shared_bytes() <= shared_bytes;
  };
  while (!takes(kTunings[static_cast<std::size_t>(row_of_masked(index))])) ++index;
  return index;
}

}  // namespace fovea::gpu::portable::attention
