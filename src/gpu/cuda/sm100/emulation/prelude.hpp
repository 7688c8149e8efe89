// SPDX-License-Identifier: Apache-2.0
/// CUDA's words in a kernel's source that the host compiles. The build includes this before each such
/// source (-include).
#pragma once

#include <cuda_runtime_api.h>

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
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
