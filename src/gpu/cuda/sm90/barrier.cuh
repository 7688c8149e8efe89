// SPDX-License-Identifier: Apache-2.0
/// The order of threads and copies within a CTA: mbarriers, positions in the rings that they guard,
/// and fences.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/named_barrier.cuh"
#include "gpu/cuda/sm90/shared_memory.cuh"

namespace fovea::gpu::sm90 {

// ---- mbarriers ------------------------------------------------------------------------------------------------------------------

/// A phase is complete after `arrivals`, and after the bytes that these arrivals expect.
__device__ inline void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

template <int kCount>
__device__ inline void barriers_init(std::uint64_t (&barriers)[kCount], int arrivals) {
  for (std::uint64_t& barrier : barriers) barrier_init(shared_address(&barrier), arrivals);
}

/// Makes initialised barriers visible to the other CTAs of the cluster and to TMA.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives. The phase also waits for `bytes` of copies.
__device__ inline void barrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

/// Waits until the phase of this parity is complete.
__device__ inline void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finish;\nbra wait;\nfinish:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

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
  // Position of the count-th tile that enters the ring.
  static __device__ constexpr int stage_of(std::uint32_t count) { return count % kStages; }
  static __device__ constexpr std::uint32_t parity_of(std::uint32_t count) { return count / kStages & 1; }
};

// ---- fences ---------------------------------------------------------------------------------------------------------------------

/// Makes this thread's stores to shared memory visible to wgmma and TMA, after a barrier with their
/// issuer.
__device__ inline void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Makes what this thread has seen in global memory visible to the copies that it issues.
__device__ inline void fence_global_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace fovea::gpu::sm90
