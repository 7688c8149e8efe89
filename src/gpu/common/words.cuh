// SPDX-License-Identifier: Apache-2.0
/// Elements in the words that hold them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace fovea::gpu {

/// Two neighbours of type T. Unlike a Pack, words keep two elements in one register until then.
template <class T>
__device__ inline float2 two_to_f32(const std::uint32_t* words) {
  if constexpr (std::is_same_v<T, float>) return {__uint_as_float(words[0]), __uint_as_float(words[1])};
  if constexpr (std::is_same_v<T, __half>) return __half22float2(*reinterpret_cast<const __half2*>(words));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return {__uint_as_float(words[0] << 16), __uint_as_float(words[0] & 0xffff0000u)};
}

}  // namespace fovea::gpu
