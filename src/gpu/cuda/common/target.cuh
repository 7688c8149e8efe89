// SPDX-License-Identifier: Apache-2.0
/// What the blocks of this folder are compiled for. Kernels ask for it only to leave out instances that this architecture never runs.
#pragma once

namespace fovea::gpu {

/// 75 is compute capability 7.5; 0 is the host.
#ifdef __CUDA_ARCH__
inline constexpr int kTarget = __CUDA_ARCH__ / 10;
#else
inline constexpr int kTarget = 0;
#endif

}  // namespace fovea::gpu
