// SPDX-License-Identifier: Apache-2.0
/// Tensor maps of the emulated driver, and the copies that they describe.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace fovea::gpu::sm100::emulation {

/// The 128 bytes of a CUtensorMap.
struct alignas(64) TensorMap {
  static constexpr std::uint32_t kMark = 0x5443504d;
  std::uint32_t mark = kMark;
  std::uint8_t rank = 0, element_bytes = 0, swizzle_bytes = 0;  ///< 0 without a swizzle
  const std::byte* base = nullptr;
  std::array<std::uint32_t, 5> extents{};  ///< 0 is 2^32
  std::array<std::uint16_t, 5> box{};
  std::array<std::uint64_t, 5> stride_bytes{};  ///< of dimension i; that of the innermost is its element's

  std::size_t box_bytes() const;
};
static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));

/// The driver's cuTensorMapEncodeTiled, with the rules that its documentation states.
CUresult CUDAAPI encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* extents,
                                   const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps, CUtensorMapInterleave,
                                   CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill);

/// Where the hardware puts the byte at `address`: the swizzle permutes 16-byte chunks by address bits.
constexpr std::uint32_t swizzled(std::uint32_t address, int swizzle_bytes) {
  const std::uint32_t chunks = static_cast<std::uint32_t>(swizzle_bytes) / 16;
  return chunks == 0 ? address : address ^ ((address >> 7 & (chunks - 1)) << 4);
}

/// Fills a box from `start` to shared memory, whose byte at address `base_address` is `base`. Elements
/// outside the tensor are zeros.
void fill_box(const TensorMap& map, const std::array<int, 5>& start, std::byte* base, std::uint32_t base_address, std::uint32_t address);

}  // namespace fovea::gpu::sm100::emulation
