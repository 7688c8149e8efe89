// SPDX-License-Identifier: Apache-2.0
/// Quantised values and scales of the packed latent formats as numbers. Everything here is exact.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace fovea::gpu {

/// Two e4m3 codes (the low 16 bits) as two halves.
__device__ inline std::uint32_t halves_from_e4m3(std::uint32_t codes) {
  const __half2_raw halves = __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return halves.x | static_cast<std::uint32_t>(halves.y) << 16;
}

inline constexpr float kE2m1Unit = 16384.0f;  // factor of the halves below

/// Two e2m1 codes (the low 8 bits, the first in the low nibble) as two halves. The e2m1 exponent and mantissa are the lowest ones of a
/// half.
__device__ inline std::uint32_t halves_from_e2m1(std::uint32_t codes) {
  const std::uint32_t apart = (codes & 0xf) | (codes & 0xf0) << 12;
  return (apart & 0x00070007) << 9 | (apart & 0x00080008) << 12;
}

__device__ inline float2 floats_from_halves(std::uint32_t halves) { return __half22float2(*reinterpret_cast<const __half2*>(&halves)); }

/// 2 ^ (code - 127). The smallest one is subnormal, and 255 is NaN.
__device__ inline float f32_from_ue8m0(std::uint32_t code) {
  return __uint_as_float(code == 0 ? 0x00400000u : code == 255 ? 0x7fc00000u : code << 23);
}

}  // namespace fovea::gpu
