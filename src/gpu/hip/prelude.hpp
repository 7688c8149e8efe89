// SPDX-License-Identifier: Apache-2.0
/// The words of a kernel's source. clang builds device code from compiler builtins alone: no HIP header, no device library. Any C++
/// compiler builds the same source for the host, where gpu/hip/emulation runs it. The build includes this before every kernel source
/// (-include).
#pragma once

#ifdef __HIP_DEVICE_COMPILE__
#define __host__ __attribute__((host))  // clang's own <algorithm> uses both
#define __device__ __attribute__((device))
#include <stdlib.h>
#else
#define __device__
#include <cmath>
#endif
#define __forceinline__ inline __attribute__((always_inline))

#include <bit>
#include <cstdint>

namespace fovea::gpu {

#ifdef __HIP_DEVICE_COMPILE__
#define INFINITY __builtin_inff()
__device__ __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
__device__ __forceinline__ float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
__device__ __forceinline__ float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
/// One instruction, of normal numbers. Softmax takes the logarithm of sums from 2^-126 on.
__device__ __forceinline__ float log2f(float x) { return __builtin_amdgcn_logf(x); }
__device__ __forceinline__ bool isfinite(float x) { return __builtin_isfinite(x); }
#else
using std::isfinite;
#endif

/// Rounded each by itself: the build lets compilers fuse within an expression alone.
__device__ __forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__device__ __forceinline__ float __fmul_rn(float a, float b) { return a * b; }

namespace cdna {

inline constexpr int kLanes = 64;

#ifdef __HIP_DEVICE_COMPILE__
template <class T, int kCount>
using Vector = T __attribute__((ext_vector_type(kCount)));
using Short4 = Vector<short, 4>;
using Float4 = Vector<float, 4>;
using Float2 = Vector<float, 2>;
#else
using Short4 = short __attribute__((vector_size(8)));
using Float4 = float __attribute__((vector_size(16)));
using Float2 = float __attribute__((vector_size(8)));
#endif

/// Words of 32 bits that one instruction moves.
template <int kCount>
struct Words {
  std::uint32_t word[kCount];
};

/// From any address: global memory takes accesses of 16 bytes at every alignment. A pointer that the compiler does not know to be of
/// global memory would be accessed byte by byte.
#ifdef __HIP_DEVICE_COMPILE__
template <int kBytes>
struct __attribute__((packed)) Unaligned {
  Vector<std::uint32_t, kBytes / 4> bits;
};
template <>
struct __attribute__((packed)) Unaligned<2> {
  std::uint16_t bits;
};
template <class T>
__device__ __forceinline__ T load_unaligned(const void* from) {
  return __builtin_bit_cast(T, ((const __attribute__((address_space(1))) Unaligned<sizeof(T)>*)from)->bits);
}
template <class T>
__device__ __forceinline__ void store_unaligned(void* to, const T& value) {
  using Bits = decltype(Unaligned<sizeof(T)>::bits);
  ((__attribute__((address_space(1))) Unaligned<sizeof(T)>*)to)->bits = __builtin_bit_cast(Bits, value);
}
#else
template <class T>
T load_unaligned(const void* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void store_unaligned(void* to, const T& value) {
  __builtin_memcpy(to, &value, sizeof(T));
}
#endif

}  // namespace cdna
}  // namespace fovea::gpu
