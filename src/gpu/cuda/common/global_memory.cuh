// SPDX-License-Identifier: Apache-2.0
/// Loads, prefetches and flags in global memory.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fovea::gpu {

/// Loads `to`, 16 bytes at a time. All loads are issued before the first value is needed.
template <class T>
__device__ inline void load_at_once(const T* global, T& to) {
  static_assert(sizeof(T) % 16 == 0);
  auto* words = reinterpret_cast<std::uint32_t*>(&to);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(T) / 4); i += 4) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                 : "l"(reinterpret_cast<const std::uint32_t*>(global) + i));
  }
}

/// Prefetches the line of this address into L2.
__device__ inline void prefetch_line(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

/// Sets a flag to 1. A thread that has waited for the flag sees what this thread's warp stored before (after __syncwarp).
__device__ inline void flag_raise_if(bool wanted, int* flag) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %1, 0;\n@wanted st.release.gpu.global.s32 [%0], 1;\n}" ::"l"(flag),
               "r"(static_cast<int>(wanted))
               : "memory");
}
/// Sets a flag, by one thread after a barrier of those whose stores a waiting thread sees.
__device__ inline void flag_set(int* flag, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline void flag_set(std::uint64_t* flag, std::uint64_t value) {
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
__device__ inline int load_acquire(const int* flag) {
  int found;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(found) : "l"(flag) : "memory");
  return found;
}
__device__ inline std::uint64_t load_acquire(const std::uint64_t* flag) {
  std::uint64_t found;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
  return found;
}
/// Waits until a flag holds `value`.
template <class Flag>
__device__ inline void flag_wait(const Flag* flag, std::type_identity_t<Flag> value) {
  while (load_acquire(flag) != value) continue;
}

}  // namespace fovea::gpu
