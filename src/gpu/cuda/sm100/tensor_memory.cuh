// SPDX-License-Identifier: Apache-2.0
/// Tensor memory: 128 lanes of 512 columns of 32 bits. Its allocation, loads and stores. All lanes of a
/// warp call these functions together. The host has the same ones in
/// gpu/cuda/sm100/emulation/tensor_memory.hpp.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include "gpu/cuda/sm100/emulation/tensor_memory.hpp"
#else

#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100 {

/// Stores the address of kColumns columns, a power of two from 32 on, in shared memory. The same warp
/// frees them.
template <int kColumns>
__device__ inline void tmem_allocate(std::uint32_t& shared_slot) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(shared_address(&shared_slot)), "n"(kColumns)
               : "memory");
}
/// The CTA allocates no more: others of the SM may.
__device__ inline void tmem_relinquish() { asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory"); }
template <int kColumns>
__device__ inline void tmem_free(std::uint32_t address) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(address), "n"(kColumns) : "memory");
}

// ---- order ----------------------------------------------------------------------------------------------------------------------

/// Waits for the loads of this thread. Registers of `loaded` are read after the wait.
template <int... kColumns>
__device__ __forceinline__ void tmem_load_wait(std::uint32_t (&... loaded)[kColumns]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
  [[maybe_unused]] const auto fence_operand = [](auto& registers) {
#pragma unroll
    for (std::uint32_t& r : registers) asm volatile("" : "+r"(r));
  };
  (fence_operand(loaded), ...);
}
/// Waits for the stores of this thread.
__device__ inline void tmem_store_wait() { asm volatile("tcgen05.wait::st.sync.aligned;" ::: "memory"); }

/// Orders accesses of tensor memory, before it, before what follows a barrier.
__device__ inline void tmem_fence_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
/// Orders accesses of tensor memory, after it, after what precedes a barrier.
__device__ inline void tmem_fence_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// ---- loads and stores -----------------------------------------------------------------------------------------------------------

/// Loads kColumns columns of lane `address`'s lane + lane(). The warp's 32 lanes begin at first_lane().
/// The registers hold them after tmem_load_wait.
template <int kColumns>
__device__ void tmem_load(std::uint32_t (&to)[kColumns], std::uint32_t address);
/// Stores kColumns columns there. They are in tensor memory after tmem_store_wait.
template <int kColumns>
__device__ void tmem_store(std::uint32_t address, const std::uint32_t (&from)[kColumns]);

// Names of the registers in an instruction.
#define FOVEA_R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FOVEA_R1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FOVEA_R2 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FOVEA_R4 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define FOVEA_R6 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FOVEA_R8 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define FOVEA_R10 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define FOVEA_R12 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define FOVEA_R14 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define FOVEA_NAMES_8 FOVEA_R0
#define FOVEA_NAMES_16 FOVEA_NAMES_8 FOVEA_R1
#define FOVEA_NAMES_32 FOVEA_NAMES_16 FOVEA_R2
#define FOVEA_NAMES_64 FOVEA_NAMES_32 FOVEA_R4 FOVEA_R6
#define FOVEA_NAMES_128 FOVEA_NAMES_64 FOVEA_R8 FOVEA_R10 FOVEA_R12 FOVEA_R14

// The registers as operands with the constraint C.
#define FOVEA_OPERANDS_4(C, i) C(r[i]), C(r[(i) + 1]), C(r[(i) + 2]), C(r[(i) + 3])
#define FOVEA_OPERANDS_8(C, i) FOVEA_OPERANDS_4(C, i), FOVEA_OPERANDS_4(C, (i) + 4)
#define FOVEA_OPERANDS_16(C, i) FOVEA_OPERANDS_8(C, i), FOVEA_OPERANDS_8(C, (i) + 8)
#define FOVEA_OPERANDS_32(C, i) FOVEA_OPERANDS_16(C, i), FOVEA_OPERANDS_16(C, (i) + 16)
#define FOVEA_OPERANDS_64(C, i) FOVEA_OPERANDS_32(C, i), FOVEA_OPERANDS_32(C, (i) + 32)
#define FOVEA_OPERANDS_128(C, i) FOVEA_OPERANDS_64(C, i), FOVEA_OPERANDS_64(C, (i) + 64)

// ADDRESS: the name of the operand that follows the registers.
#define FOVEA_TENSOR_MEMORY(N, ADDRESS)                                                                                           \
  template <>                                                                                                                     \
  __device__ __forceinline__ void tmem_load<N>(std::uint32_t(&r)[N], std::uint32_t address) {                                     \
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x" #N ".b32 {" FOVEA_NAMES_##N "}, [" ADDRESS "];"                               \
                 : FOVEA_OPERANDS_##N("=r", 0)                                                                                    \
                 : "r"(address)                                                                                                   \
                 : "memory");                                                                                                     \
  }                                                                                                                               \
  template <>                                                                                                                     \
  __device__ __forceinline__ void tmem_store<N>(std::uint32_t address, const std::uint32_t(&r)[N]) {                              \
    asm volatile("tcgen05.st.sync.aligned.32x32b.x" #N ".b32 [" ADDRESS "], {" FOVEA_NAMES_##N "};" ::FOVEA_OPERANDS_##N("r", 0), \
                 "r"(address)                                                                                                     \
                 : "memory");                                                                                                     \
  }

FOVEA_TENSOR_MEMORY(8, "%8")
FOVEA_TENSOR_MEMORY(16, "%16")
FOVEA_TENSOR_MEMORY(32, "%32")
FOVEA_TENSOR_MEMORY(64, "%64")
FOVEA_TENSOR_MEMORY(128, "%128")

#undef FOVEA_TENSOR_MEMORY
#undef FOVEA_OPERANDS_4
#undef FOVEA_OPERANDS_8
#undef FOVEA_OPERANDS_16
#undef FOVEA_OPERANDS_32
#undef FOVEA_OPERANDS_64
#undef FOVEA_OPERANDS_128
#undef FOVEA_NAMES_8
#undef FOVEA_NAMES_16
#undef FOVEA_NAMES_32
#undef FOVEA_NAMES_64
#undef FOVEA_NAMES_128
#undef FOVEA_R0
#undef FOVEA_R1
#undef FOVEA_R2
#undef FOVEA_R4
#undef FOVEA_R6
#undef FOVEA_R8
#undef FOVEA_R10
#undef FOVEA_R12
#undef FOVEA_R14

}  // namespace fovea::gpu::sm100

#endif
