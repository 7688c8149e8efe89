// SPDX-License-Identifier: Apache-2.0
/// The way of 16-bit results from accumulators to global memory, without shared memory.
#pragma once

#include <cstdint>

#include "gpu/cuda/common/fragment.cuh"

namespace fovea::gpu::sm90 {

/// Stores 16 bytes under a predicate, without a branch.
__device__ inline void store_global_if(bool wanted, void* global, const std::uint32_t (&x)[4]) {
  asm volatile("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %5, 0;\n@wanted st.global.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"l"(global),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(static_cast<int>(wanted))
               : "memory");
}

/// Transposes a 4 x 4 matrix whose columns the four lanes of a row have. `part`: the lane's number among
/// them.
__device__ __forceinline__ void transpose_in_row(std::uint32_t (&x)[4], int part) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = (part & bit) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int i = bit == 1 ? 2 * pair : pair;
      const std::uint32_t received = __shfl_xor_sync(~0u, high ? x[i] : x[i + bit], bit);
      x[i] = high ? received : x[i];
      x[i + bit] = high ? x[i + bit] : received;
    }
  }
}

/// Stores row r of accumulators times `factor`, rounded, up to `columns`, a multiple of eight. The four
/// lanes of the row exchange pairs, so that each stores 16 bytes at a time. With `kNeighbours`, 16
/// accumulators of a lane are eight neighbours of each row. `to`: the row's first column.
template <class Element, bool kNeighbours = false, int kCount>
__device__ __forceinline__ void store_row_16_bit(Element* to, const float (&x)[kCount], int r, float factor, int part, int columns) {
  static_assert(kCount % 16 == 0);
  Element* at = to + 8 * part;  // offsets behind it are immediates
  const int left = columns - 8 * part;
#pragma unroll
  for (int begin = 0; begin < kCount; begin += 16) {
    std::uint32_t pairs[4];
#pragma unroll
    for (int group = 0; group < 4; ++group) {
      const int i = begin + 4 * group + 2 * r;
      pairs[group] = pack<Element>(x[i] * factor, x[i + 1] * factor);
    }
    if constexpr (!kNeighbours) transpose_in_row(pairs, part);
    store_global_if(2 * begin < left, at + 2 * begin, pairs);
  }
}

/// Stores such neighbours of row r as f32.
template <int kCount>
__device__ __forceinline__ void store_row_of_neighbours(float* to, const float (&x)[kCount], int r, float factor, int part, int columns) {
#pragma unroll
  for (int i = 2 * r; i < kCount; i += 8) {
    const int column = i / 16 * 32 + 8 * part + i % 16 / 8 * 4;
    if (column < columns)
      *reinterpret_cast<float4*>(to + column) = {x[i] * factor, x[i + 1] * factor, x[i + 4] * factor, x[i + 5] * factor};
  }
}

}  // namespace fovea::gpu::sm90
