// SPDX-License-Identifier: Apache-2.0
/// The shared memory of a CTA.
#pragma once

#include <cstddef>

#include "gpu/cuda/common/quantized/scales.cuh"
#include "gpu/cuda/portable/attention/work.cuh"
#include "gpu/cuda/portable/quantized_attention/config.hpp"
#include "gpu/cuda/portable/quantized_attention/params.hpp"

namespace fovea::gpu::portable::quantized_attention {

using attention::WorkTile;
static_assert(sizeof(WorkTile) <= Tuning::kWorkBytes);
using Scales = gpu::Scales<Params, WorkTile>;

/// Rows are SwizzledRows.
template <class Config>
struct Storage {
  alignas(128) std::byte q[Config::kTuning.query_bytes()];
  alignas(128) std::byte k[Config::kStages][Config::kTuning.key_bytes()];
  alignas(128) std::byte v[Config::kStages][Config::kTuning.value_bytes(Config::kValueSize)];
  alignas(128) WorkTile work;
};

}  // namespace fovea::gpu::portable::quantized_attention
