// SPDX-License-Identifier: Apache-2.0
/// The instructions of sm_90a that a C++ compiler does not write by itself, one function each. Shared memory is addressed by its 32-bit
/// address, which is what the instructions take.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fovea::gpu::sm90 {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier -------------------------------------------------------------------------------------------------------------------

__device__ inline void barrier_init(std::uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

template <int kCount>
__device__ inline void barriers_init(std::uint64_t (&barriers)[kCount], int arrivals) {
  for (std::uint64_t& barrier : barriers) barrier_init(shared_address(&barrier), arrivals);
}

__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// Arrives at the barrier at the same place in the shared memory of another CTA of this cluster. It says that tiles have been read: nothing
/// that was written before has to be seen there. `.release.cluster` would be a fence of all memory, for which each tile would wait.
__device__ inline void barrier_arrive_at(std::uint32_t barrier, int cta) {
  asm volatile(
      "{\n.reg .b32 remote;\n"
      "mapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(barrier),
      "r"(cta)
      : "memory");
}

__device__ inline void barrier_arrive_expect(std::uint32_t barrier, int bytes) {
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

/// Makes initialised barriers visible to the other CTAs of the cluster and to the copy engine.
__device__ inline void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// ---- named barriers, clusters, fences -------------------------------------------------------------------------------------------

__device__ inline void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ inline void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

__device__ inline int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// What this thread stored to shared memory becomes visible to wgmma and to the copy engine (after a barrier with their issuer).
__device__ inline void fence_shared_for_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// What this thread has seen in global memory is seen by the copies that it starts.
__device__ inline void fence_global_for_async() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

template <int kRegisters>
__device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

/// Programmatic dependent launch: waits for the kernels before this one; lets the next one start.
__device__ inline void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ inline void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

/// A flag in global memory: what this thread's warp wrote before (after __syncwarp) is seen by who sees the flag; and to wait for it.
__device__ inline void flag_raise_if(bool wanted, int* flag) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %1, 0;\n@wanted st.release.gpu.global.s32 [%0], 1;\n}" ::"l"(flag),
               "r"(static_cast<int>(wanted))
               : "memory");
}
__device__ inline void flag_await(const int* flag) {
  int raised;
  do {
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
  } while (raised == 0);
}

__device__ inline int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));  // volatile: read again rather than kept
  return lane;
}

__device__ inline int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));  // likewise
  return thread;
}

/// The same value in every lane, and ptxas knows it: branches on it do not count as divergent.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// ---- copies ---------------------------------------------------------------------------------------------------------------------

/// 16 bytes from global to shared memory, zeros unless `valid`.
__device__ inline void copy_async(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
/// The same of 8 bytes.
__device__ inline void copy_async_8(std::uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(valid ? 8 : 0) : "memory");
}
__device__ inline void store_shared(std::uint32_t shared, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("st.volatile.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
/// The lower 16 bits.
__device__ inline void store_shared_16(std::uint32_t shared, std::uint32_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(shared), "h"(static_cast<std::uint16_t>(x)) : "memory");
}
__device__ inline void load_shared(std::uint32_t shared, std::uint32_t (&to)[4]) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(shared) : "memory");
}
__device__ inline void load_shared_8(std::uint32_t shared, std::uint32_t (&to)[4]) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(shared) : "memory");
}
/// By a predicate: lanes that part in a branch, be it for one load, cost the warpgroup products around it much.
__device__ inline void load_shared_if(bool wanted, std::uint32_t shared, uint2& to) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %3, 0;\n@wanted ld.shared.v2.b32 {%0, %1}, [%2];\n}"
               : "+r"(to.x), "+r"(to.y)
               : "r"(shared), "r"(static_cast<int>(wanted))
               : "memory");
}
/// The same place in the shared memory of `cta` of this cluster.
__device__ inline std::uint32_t remote_address(std::uint32_t shared, int cta) {
  std::uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared), "r"(cta));
  return remote;
}
/// 16 bytes at a time, all of which are asked for before any is waited for.
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
/// What is there comes into L2.
__device__ inline void prefetch_line(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }
/// From here to another CTA's shared memory, by the copy engine; the other's barrier counts the bytes when they are there.
__device__ inline void copy_to_peer(std::uint32_t remote, std::uint32_t shared, int bytes, std::uint32_t remote_barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(remote), "r"(shared),
               "r"(bytes), "r"(remote_barrier)
               : "memory");
}
/// From registers to another CTA's shared memory, whose barrier counts the bytes.
__device__ inline void store_async(std::uint32_t remote, const std::uint32_t (&x)[4], std::uint32_t remote_barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(remote_barrier)
               : "memory");
}
/// Arrives at the barrier when this thread's copies so far are there.
__device__ inline void copy_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void copy_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// ---- matrix fragments -----------------------------------------------------------------------------------------------------------

/// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t shared, std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

template <class Element>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace fovea::gpu::sm90
