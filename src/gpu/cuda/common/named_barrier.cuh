// SPDX-License-Identifier: Apache-2.0
/// Barriers of some warps of a CTA. Barrier 0 is that of __syncthreads().
#pragma once

namespace fovea::gpu {

/// Arrives and waits, until `threads` have arrived in whole warps.
__device__ inline void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// The same. Returns whether `vote` is true in any of the threads.
__device__ inline bool named_any(int id, int threads, bool vote) {
  int any;
  asm volatile("{\n.reg .pred own, all;\nsetp.ne.s32 own, %3, 0;\nbar.red.or.pred all, %1, %2, own;\nselp.s32 %0, 1, 0, all;\n}"
               : "=r"(any)
               : "r"(id), "r"(threads), "r"(static_cast<int>(vote))
               : "memory");
  return any != 0;
}
/// Arrives and does not wait.
__device__ inline void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

}  // namespace fovea::gpu
