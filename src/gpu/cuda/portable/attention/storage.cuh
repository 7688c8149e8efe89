// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <cstddef>

#include "gpu/cuda/portable/attention/config.hpp"
#include "gpu/cuda/portable/attention/work.cuh"

namespace fovea::gpu::portable::attention {

static_assert(sizeof(WorkTile) <= Tuning::kWorkBytes);

/// Rows are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte q[Config::kTuning.query_bytes()];  // then the results of these rows
  alignas(128) std::byte k[Config::kStages][Config::kTuning.key_bytes()];
  alignas(128) std::byte v[Config::kStages][Config::kTuning.value_bytes()];
  alignas(128) WorkTile work;
};

}  // namespace fovea::gpu::portable::attention
