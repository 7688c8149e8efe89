// SPDX-License-Identifier: Apache-2.0
/// Copies of a thread from global to shared memory, for rows that no TMA box holds (cp.async).
#pragma once

#include <cstdint>

namespace fovea::gpu::sm90 {

/// Issues a copy of 16 bytes, or of zeros unless `valid`. Unlike that of gpu/cuda/common, it does not convert the address, which changes
/// the instructions of gathered rows.
__device__ inline void copy_async(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
/// The same of 8 bytes.
__device__ inline void copy_async_8(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0) : "memory");
}

/// Arrives at a barrier once this thread's copies so far are complete. The arrival counts among those that the barrier expects.
__device__ inline void copy_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace fovea::gpu::sm90
