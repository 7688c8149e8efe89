// SPDX-License-Identifier: Apache-2.0
/// The order of values as numbers, and the keys of candidates.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cmath>

#include "gpu/cuda/portable/topk_rows/params.hpp"

namespace fovea::gpu::portable::topk {

inline constexpr unsigned kNanOrder = 1;           ///< NaN comes after -inf
inline constexpr Key kNoThreshold = Key{1} << 32;  ///< no key is below it

/// Unsigned numbers in the order of the values, above 0. -0 is 0.
__device__ inline unsigned order_of(float value) {
  const unsigned bits = __float_as_uint(value + 0.0f);
  const unsigned order = bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
  return value != value ? kNanOrder : order;
}
/// The least value of an order or a higher one. NaN above that of inf, which no value reaches.
__device__ inline float value_of(unsigned order) {
  const float value = __uint_as_float(order ^ (order >> 31 != 0 ? 0x80000000u : ~0u));
  return value != value && order >> 31 == 0 ? -INFINITY : value;
}

__device__ inline Key key_of(float value, unsigned place) { return static_cast<Key>(order_of(value)) << 32 | ~place; }
__device__ inline unsigned place_of(Key key) { return ~static_cast<unsigned>(key); }
__device__ inline unsigned order_of_key(Key key) { return static_cast<unsigned>(key >> 32); }

__device__ inline float to_f32(float value) { return value; }
__device__ inline float to_f32(__half value) { return __half2float(value); }
__device__ inline float to_f32(__nv_bfloat16 value) { return __bfloat162float(value); }

}  // namespace fovea::gpu::portable::topk
