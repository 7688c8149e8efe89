// SPDX-License-Identifier: Apache-2.0
/// tma.cuh for the host. Its BoxStart comes first.
#pragma once

#include <cuda.h>

#include "gpu/cuda/sm100/emulation/machine.hpp"

namespace fovea::gpu::sm100 {

inline void prefetch_tensor_map(const CUtensorMap*) {}
inline void tma_load(void* shared, const CUtensorMap* map, BoxStart at, std::uint64_t& barrier) {
  emulation::tma_load(shared, map, {at.column, at.row, at.slice, at.head, at.block}, barrier);
}

}  // namespace fovea::gpu::sm100
