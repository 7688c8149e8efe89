// SPDX-License-Identifier: Apache-2.0
/// CUDA's words in a kernel's source that the host compiles. The build includes this before each such
/// source (-include).
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>

#undef __device__
#undef __host__
#undef __global__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#undef __align__
#define __device__
#define __host__
#define __global__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))

namespace fovea::gpu {

using std::isfinite;
using std::max;
using std::min;

/// Rounded each by itself: the build lets compilers fuse within an expression alone.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }

}  // namespace fovea::gpu
