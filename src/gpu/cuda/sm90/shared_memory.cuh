// SPDX-License-Identifier: Apache-2.0
/// Loads, stores and asynchronous copies (cp.async) of a thread in shared memory, beside those of
/// gpu/cuda/common/shared.cuh.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/shared.cuh"

namespace fovea::gpu::sm90 {

/// Stores 16 bytes. Volatile stores keep their order among volatile loads.
__device__ inline void store_shared(std::uint32_t shared, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("st.volatile.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
/// Loads 16 bytes.
__device__ inline void load_shared(std::uint32_t shared, std::uint32_t (&to)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared) : "memory");
}
/// Loads 8 bytes into the first two words.
__device__ inline void load_shared_8(std::uint32_t shared, std::uint32_t (&to)[4]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(shared) : "memory");
}
/// Loads 8 bytes under a predicate. A divergent branch, even for one load, slows down the MMAs around
/// it.
__device__ inline void load_shared_if(bool wanted, std::uint32_t shared, uint2& to) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %3, 0;\n@wanted ld.shared.v2.b32 {%0, %1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "r"(shared), "r"(static_cast<int>(wanted))
               : "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements. Lane l has the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t shared, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// ---- cp.async, for rows that no TMA box holds

/// Copies 16 bytes, or zeros unless `valid`. The copy_async of gpu/cuda/common takes a pointer; its
/// conversion changes the instructions of gathered rows.
__device__ inline void copy_async(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
/// The same of 8 bytes.
__device__ inline void copy_async_8(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0) : "memory");
}

/// Arrives at a barrier once this thread's copies so far are complete. The barrier counts the arrival
/// among those that it expects.
__device__ inline void copy_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace fovea::gpu::sm90
