// SPDX-License-Identifier: Apache-2.0
/// Barriers of some warps of a CTA. Barrier 0 is that of __syncthreads().
#pragma once

namespace fovea::gpu {

/// Arrives and waits, until `threads` have arrived in whole warps.
__device__ inline void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
/// Arrives and does not wait.
__device__ inline void named_arrive(int id, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

}  // namespace fovea::gpu
