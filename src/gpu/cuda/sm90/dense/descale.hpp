// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "fovea/tensor.hpp"

namespace fovea::gpu::sm90::dense {

/// An f32 factor of all values of a sequence and kv head; 1 where there is none.
struct Descale {
  const float* data = nullptr;
  std::int64_t batch_stride = 0, head_stride = 0;
};

inline Descale descale_of(const std::optional<ScaleDesc>& desc, const float* data) {
  return desc ? Descale{data, desc->batch_stride, desc->head_stride} : Descale{};
}

}  // namespace fovea::gpu::sm90::dense
