// SPDX-License-Identifier: Apache-2.0
/// Warp operations on rows of MMA accumulators: four lanes share a row, each with neighbouring columns.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace fovea::gpu {

/// The operations that gpu/common/softmax.cuh and score_transform.cuh need.
struct Warp {
  static __device__ bool any(bool condition) { return __any_sync(~0u, condition); }
  static __device__ float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
  }
  static __device__ float sum_of_row(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  static __device__ float sum_of_warp(float x) {
    x = sum_of_row(x);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x += __shfl_xor_sync(~0u, x, distance);
    return x;
  }
  static __device__ float largest_of_warp(float x) {
    x = largest_of_row(x);
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, distance));
    return x;
  }
  /// Sum over the lane and those before it. `sum(a, b)` adds two.
  template <class Sum>
  static __device__ __forceinline__ int inclusive_sum(int x, const Sum& sum) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(~0u, x, distance);
      if (lane >= distance) x = sum(x, other);
    }
    return x;
  }
  static __device__ __forceinline__ int inclusive_sum(int x) {
    return inclusive_sum(x, [](int a, int b) { return a + b; });
  }
  /// Right where the largest is above 0, else none that is larger than it: one instruction for floats compared as integers.
  static __device__ float largest_of_three(float a, float b, float c) {
    return __int_as_float(__vimax3_s32(__float_as_int(a), __float_as_int(b), __float_as_int(c)));
  }
  /// NaN if one of them is. From compute capability 8.0 on.
  static __device__ __forceinline__ float min_or_nan(float a, float b) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
  }
  static __device__ float quotient(float a, float b) { return __fdividef(a, b); }
  static __device__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  /// With an error of 2^-22, of the result where that is above 1.
  static __device__ float log2(float x) {
    float y;
    asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
};

}  // namespace fovea::gpu
