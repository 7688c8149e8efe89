// SPDX-License-Identifier: Apache-2.0
/// What the blocks of this folder are compiled for. Kernels ask for it to leave out instances that this architecture never runs, and to
/// choose instructions.
#pragma once

namespace fovea::gpu {

/// 75 is compute capability 7.5; 0 is the host.
#ifdef __CUDA_ARCH__
inline constexpr int kTarget = __CUDA_ARCH__ / 10;
#else
inline constexpr int kTarget = 0;
#endif

/// Whether warps multiply e4m3 in hardware. Compute capabilities 9.x to 11.x emulate it by conversions to f16.
constexpr bool multiplies_e4m3(int target) { return target == 89 || target >= 120; }

}  // namespace fovea::gpu
