// SPDX-License-Identifier: Apache-2.0
/// Indices of a thread, its registers, and shared memory as threads see it. The host has the same
/// functions in gpu/cuda/sm100/emulation/thread.hpp.
#pragma once

#ifndef __CUDACC__
#include "gpu/cuda/sm100/emulation/thread.hpp"
#else

#include <cstdint>

#include "gpu/cuda/common/named_barrier.cuh"

namespace fovea::gpu::sm100 {

__device__ inline int thread() { return static_cast<int>(threadIdx.x); }
__device__ inline int lane() { return static_cast<int>(threadIdx.x % 32); }
/// All lanes call it together. ptxas then knows that it is uniform: branches on it do not diverge.
__device__ inline int warp() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x / 32), 0); }
/// Grids have one dimension.
__device__ inline int block() { return static_cast<int>(blockIdx.x); }
__device__ inline int blocks() { return static_cast<int>(gridDim.x); }

// ---- a warp together ------------------------------------------------------------------------------------------------------------

/// True in one lane, always the same one.
__device__ inline bool elect_one() {
  std::uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}
__device__ inline void sync_warp() { __syncwarp(); }
__device__ inline bool warp_any(bool condition) { return __any_sync(~0u, condition) != 0; }

// ---- a CTA together -------------------------------------------------------------------------------------------------------------

__device__ inline void sync_block() { __syncthreads(); }
/// Barriers of some warps, from 1 on: 0 is that of sync_block.
__device__ inline void named_barrier_sync(int id, int threads) { named_sync(id, threads); }
__device__ inline void named_barrier_arrive(int id, int threads) { named_arrive(id, threads); }

/// Sets the registers of each thread from here on. All warps of a warpgroup call it.
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- shared memory --------------------------------------------------------------------------------------------------------------

/// Dynamic shared memory, which the swizzle wants at a multiple of 1024 bytes.
template <class Storage>
__device__ inline Storage& shared_storage() {
  extern __shared__ __align__(1024) unsigned char fovea_sm100_storage[];
  return *reinterpret_cast<Storage*>(fovea_sm100_storage);
}
__device__ inline std::uint32_t shared_address(const void* shared) { return static_cast<std::uint32_t>(__cvta_generic_to_shared(shared)); }

template <class T>
__device__ inline T load_shared(const T& from) {
  return from;
}
template <class T>
__device__ inline void store_shared(T& to, T value) {
  to = value;
}

}  // namespace fovea::gpu::sm100

#endif
