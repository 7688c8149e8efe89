// SPDX-License-Identifier: Apache-2.0
/// Programmatic dependent launch: a kernel starts while the one before it in the stream still runs.
/// Before compute capability 9.0 there is none, and these functions do nothing.
#pragma once

#include "gpu/cuda/common/target.cuh"

namespace fovea::gpu {

/// griddepcontrol.wait: until the kernels before this one are complete and their results visible.
__device__ inline void grid_dependency_wait() {
  if constexpr (kTarget >= 90) asm volatile("griddepcontrol.wait;" ::: "memory");
}
/// griddepcontrol.launch_dependents: the next kernel may start once all CTAs have called this or
/// ended.
__device__ inline void launch_dependents() {
  if constexpr (kTarget >= 90) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace fovea::gpu
