// SPDX-License-Identifier: Apache-2.0
/// Asynchronous copies of a tensor map's boxes by TMA. The host has the same functions in
/// gpu/cuda/sm100/emulation/tma.hpp.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fovea::gpu::sm100 {

struct BoxStart {
  int column, row, slice, head, block;  // coordinates of a 5-D map, innermost first
};

}  // namespace fovea::gpu::sm100

#ifndef __CUDACC__
#include "gpu/cuda/sm100/emulation/tma.hpp"
#else

#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100 {

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

/// Loads a box into shared memory. The barrier counts its bytes.
__device__ inline void tma_load(void* shared, const CUtensorMap* map, BoxStart at, std::uint64_t& barrier) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cta.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(
                   shared_address(shared)),
               "l"(map), "r"(shared_address(&barrier)), "r"(at.column), "r"(at.row), "r"(at.slice), "r"(at.head), "r"(at.block)
               : "memory");
}

}  // namespace fovea::gpu::sm100

#endif
