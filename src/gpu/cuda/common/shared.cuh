// SPDX-License-Identifier: Apache-2.0
/// Shared memory by its 32-bit address, which is what instructions take, and the places of rows in it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace fovea::gpu {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}
__device__ inline void store_shared_16(std::uint32_t shared, std::uint32_t x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(shared), "h"(static_cast<std::uint16_t>(x)) : "memory");
}
__device__ inline void store_shared_32(std::uint32_t shared, std::uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}
__device__ inline void store_shared_128(std::uint32_t shared, uint4 x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ inline std::uint16_t load_shared_16(std::uint32_t shared) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(shared) : "memory");
  return x;
}
__device__ inline uint4 load_shared_128(std::uint32_t shared) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(shared) : "memory");
  return x;
}

/// Rows of kColumns 16-bit elements, in chunks of 16 bytes. The chunks of a row change places within spans of 128 or 64 bytes, so that one
/// column of chunks of eight neighbouring rows lies in different banks. The address of the first row is a multiple of 128.
template <int kColumns>
struct SwizzledRows {
  static_assert(kColumns % 32 == 0);
  static constexpr int kRowBytes = 2 * kColumns;
  static constexpr int kSpanBytes = kRowBytes % 128 == 0 ? 128 : 64;
  static constexpr int kSpanChunks = kSpanBytes / 16, kSpans = kRowBytes / kSpanBytes;

  /// Byte offset of a chunk from the first row.
  __device__ static constexpr int offset(int row, int chunk) {
    const int places = kSpanBytes == 128 ? row % 8 : row / 2 % 4;
    return row * kRowBytes + ((chunk ^ places) * 16);
  }
  /// From the address of a row's chunk 0 or 1 to that of the chunk `columns` further: a multiple of 16, best a constant.
  __device__ static constexpr std::uint32_t advanced(std::uint32_t address, int columns) {
    const int bytes = 2 * columns;
    return (address ^ static_cast<std::uint32_t>(bytes % kSpanBytes)) + static_cast<std::uint32_t>(bytes / kSpanBytes * kSpanBytes);
  }
};

}  // namespace fovea::gpu
