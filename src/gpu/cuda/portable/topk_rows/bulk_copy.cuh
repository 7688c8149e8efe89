// SPDX-License-Identifier: Apache-2.0
/// Bulk copies from global to shared memory, which mbarriers count. From compute capability 9.0 on.
#pragma once

#include <cstdint>

namespace fovea::gpu::portable::topk {

/// A phase of the barrier is complete after one arrival, and after the bytes that it expects.
__device__ inline void barrier_init(std::uint32_t barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
/// Makes this thread's initialised barriers visible to bulk copies.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// Waits until the phase of this parity is complete.
__device__ inline void barrier_wait(std::uint32_t barrier, unsigned parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra wait;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

/// Arrives at the barrier and copies `bytes`, a multiple of 16, which the barrier waits for.
__device__ inline void bulk_copy(std::uint32_t shared, const void* from, unsigned bytes, std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
               : "memory");
}

/// Orders this thread's accesses of shared memory before later bulk copies.
__device__ inline void fence_for_bulk_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace fovea::gpu::portable::topk
