// SPDX-License-Identifier: Apache-2.0
/// The order of threads, copies and MMAs within a CTA: mbarriers, positions in the rings that they
/// guard, and fences. The host has the same functions in gpu/cuda/sm100/emulation/barrier.hpp.
#pragma once

#include <cstdint>

#ifndef __CUDACC__
#include "gpu/cuda/sm100/emulation/barrier.hpp"
#else

#include "gpu/cuda/sm100/thread.cuh"

namespace fovea::gpu::sm100 {

// ---- mbarriers ------------------------------------------------------------------------------------------------------------------

/// A phase is complete after `arrivals`, and after the bytes that these arrivals expect.
__device__ inline void barrier_init(std::uint64_t& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to TMA and to the commits of MMAs.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
/// Arrives. The phase also waits for `bytes` of copies.
__device__ inline void barrier_arrive_expect_tx(std::uint64_t& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
/// Waits until the phase of this parity is complete. Every thread that reads what it guards waits.
__device__ inline void barrier_wait(std::uint64_t& barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finish;\nbra wait;\nfinish:\n}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

/// Makes this thread's stores to shared memory visible to MMAs and TMA, after a barrier with their
/// issuer.
__device__ inline void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace fovea::gpu::sm100

#endif

namespace fovea::gpu::sm100 {

/// Position in a ring of kStages, each with a full and an empty barrier. A consumer waits at the full
/// barrier for `parity`. A producer waits at the empty barrier for the other parity.
template <int kStages>
struct PipelineState {
  int stage = 0;
  std::uint32_t parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace fovea::gpu::sm100
