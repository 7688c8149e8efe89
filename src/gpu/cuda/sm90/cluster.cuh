// SPDX-License-Identifier: Apache-2.0
/// Accesses of the shared memory of another CTA of a cluster. tma.cuh has the multicast of a TMA box.
#pragma once

#include <cstdint>

namespace fovea::gpu::sm90 {

__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

/// Arrives and waits, until all threads of the cluster have arrived.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The two halves of it. The arrival orders no earlier stores; fence_barrier_init() orders barriers.
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

/// Arrives at the barrier of another CTA, at this address in its shared memory. The arrival signals
/// that tiles have been read, and orders no earlier stores. `.release.cluster` would be a fence of all
/// memory, and each tile would wait for it.
__device__ inline void barrier_arrive_at(std::uint32_t barrier, int cta) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

/// The address of `shared` in the shared memory of another CTA.
__device__ inline std::uint32_t remote_address(std::uint32_t shared, int cta) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(cta));
  return remote;
}

/// Issues a bulk copy of this CTA's shared memory to another's. The barrier there counts the bytes as
/// they arrive.
__device__ inline void copy_to_peer(std::uint32_t remote, std::uint32_t shared, int bytes, std::uint32_t remote_barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(remote), "r"(shared),
               "r"(bytes), "r"(remote_barrier)
               : "memory");
}

/// Stores registers to another CTA's shared memory. The barrier there counts the bytes as they
/// arrive.
__device__ inline void store_async(std::uint32_t remote, const std::uint32_t (&x)[4], std::uint32_t remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(remote_barrier)
               : "memory");
}

}  // namespace fovea::gpu::sm90
