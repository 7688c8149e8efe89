// SPDX-License-Identifier: Apache-2.0
/// Accesses of shared memory beside those of gpu/cuda/common/shared.cuh.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/shared.cuh"

namespace fovea::gpu::sm90 {

/// Stores 16 bytes. Volatile, so that stores keep their order among volatile loads.
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
/// Loads 8 bytes under a predicate. A branch in which lanes part, even for one load, slows down the MMAs around it.
__device__ inline void load_shared_if(bool wanted, std::uint32_t shared, uint2& to) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %3, 0;\n@wanted ld.shared.v2.b32 {%0, %1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "r"(shared), "r"(static_cast<int>(wanted))
               : "memory");
}

/// Stores four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t shared, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

}  // namespace fovea::gpu::sm90
