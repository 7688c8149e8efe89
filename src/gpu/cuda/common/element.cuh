// SPDX-License-Identifier: Apache-2.0
/// Storage types to f32 and back, several elements at a time.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace fovea::gpu {

__device__ inline float to_f32(float value) { return value; }
__device__ inline float to_f32(__half value) { return __half2float(value); }
__device__ inline float to_f32(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float to_f32(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
__device__ inline float to_f32(signed char value) { return value; }

__device__ inline void from_f32(float value, float& to) { to = value; }
__device__ inline void from_f32(float value, __half& to) { to = __float2half_rn(value); }
__device__ inline void from_f32(float value, __nv_bfloat16& to) { to = __float2bfloat16_rn(value); }

/// Elements that one instruction moves.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T element[kCount];
};

template <int kCount, class T>
__device__ inline Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}

template <class T, int kCount>
__device__ inline void store_pack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

/// Two neighbours of type T. Words keep two elements in one register until then, a Pack does not.
template <class T>
__device__ inline float2 two_to_f32(const std::uint32_t* words) {
  if constexpr (std::is_same_v<T, float>) return {__uint_as_float(words[0]), __uint_as_float(words[1])};
  if constexpr (std::is_same_v<T, __half>) return __half22float2(*reinterpret_cast<const __half2*>(words));
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return {__uint_as_float(words[0] << 16), __uint_as_float(words[0] & 0xffff0000u)};
}

}  // namespace fovea::gpu
