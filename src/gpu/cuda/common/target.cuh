// SPDX-License-Identifier: Apache-2.0
/// The architecture that code is compiled for. Kernels ask for it to choose instructions, and to leave out instances that
/// it never runs. Programmatic dependent launch, which older architectures lack.
#pragma once

namespace fovea::gpu {

/// 75 is compute capability 7.5, 0 the host.
#ifdef __CUDA_ARCH__
inline constexpr int kTarget = __CUDA_ARCH__ / 10;
#else
inline constexpr int kTarget = 0;
#endif

/// Whether the hardware has mma.sync of e4m3. Compute capabilities 9.x to 11.x emulate it by conversions to f16.
constexpr bool has_e4m3_mma(int target) { return target == 89 || target >= 120; }

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
