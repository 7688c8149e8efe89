// SPDX-License-Identifier: Apache-2.0
/// Indices of a thread, and the registers of its role.
#pragma once

namespace fovea::gpu::sm90 {

// Volatile: an index is read where it is used, which saves the register that would keep it.
__device__ inline int lane_index() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}
__device__ inline int thread_index() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// The value of lane 0, in every lane. ptxas knows that it is uniform: branches on it are not
/// divergent.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/// Sets the registers of each thread from here on. All warps of a warpgroup call it.
template <int kRegisters>
__device__ inline void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace fovea::gpu::sm90
