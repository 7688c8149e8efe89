// SPDX-License-Identifier: Apache-2.0
/// Which thread this is, and the registers of its role.
#pragma once

namespace fovea::gpu::sm90 {

// Volatile: an index is read again where it is used, because registers to keep it are short.
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

/// The same value in every lane, and ptxas knows it: branches on it do not count as divergent.
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/// Registers of each thread from here on; by all warps of a warpgroup.
template <int kRegisters>
__device__ inline void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace fovea::gpu::sm90
