// SPDX-License-Identifier: Apache-2.0
/// Asynchronous copies by TMA: boxes of a tensor map, and contiguous bytes (bulk copies).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace fovea::gpu::sm90 {

struct BoxStart {
  int column, row, slice, head, block;  // coordinates of a 5-D map, innermost first
};

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

/// Loads a box into shared memory. The barrier counts its bytes.
__device__ inline void tma_load(std::uint32_t shared, const CUtensorMap* map, BoxStart at, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.row), "r"(at.slice), "r"(at.head), "r"(at.block)
      : "memory");
}

/// Loads `bytes` without a map. The barrier counts them.
__device__ inline void bulk_load(std::uint32_t shared, const void* global, int bytes, std::uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared), "l"(global),
               "r"(bytes), "r"(barrier)
               : "memory");
}

/// Stores a box from shared memory, in this thread's group of bulk copies. Elements outside the tensor
/// are not written.
__device__ inline void tma_store(const CUtensorMap* map, BoxStart at, std::uint32_t shared) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(map), "r"(shared),
               "r"(at.column), "r"(at.row), "r"(at.slice), "r"(at.head), "r"(at.block)
               : "memory");
}
/// Stores `bytes` without a map.
__device__ inline void bulk_store(void* global, std::uint32_t shared, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes) : "memory");
}
/// Adds `bytes` of floats to those in global memory.
__device__ inline void bulk_reduce_add(float* global, std::uint32_t shared, int bytes) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
/// Waits until the stores that this thread has issued have read shared memory.
__device__ inline void tma_store_wait_read() { asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Waits until the stores that this thread has issued are in global memory.
__device__ inline void tma_store_wait() { asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory"); }

/// Prefetches a box into L2.
__device__ inline void tma_prefetch(const CUtensorMap* map, BoxStart at) {
  asm volatile("cp.async.bulk.prefetch.tensor.5d.L2.global [%0, {%1, %2, %3, %4, %5}];" ::"l"(map), "r"(at.column), "r"(at.row),
               "r"(at.slice), "r"(at.head), "r"(at.block)
               : "memory");
}

/// Loads a box into every CTA of the set `ctas`, at the same address in each. Each CTA's barrier counts
/// its bytes.
__device__ inline void tma_load_multicast(std::uint32_t shared, const CUtensorMap* map, BoxStart at, std::uint32_t barrier,
                                          std::uint16_t ctas) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2], %8;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(at.column), "r"(at.row), "r"(at.slice), "r"(at.head), "r"(at.block), "h"(ctas)
      : "memory");
}

}  // namespace fovea::gpu::sm90
