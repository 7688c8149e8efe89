// SPDX-License-Identifier: Apache-2.0
#include "gpu/cuda/sm100/emulation/tensor_map.hpp"

#include <algorithm>
#include <cstring>

namespace fovea::gpu::sm100::emulation {

namespace {

int element_bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32: return 4;
    default: return 0;
  }
}

int swizzle_bytes_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: return 0;
    case CU_TENSOR_MAP_SWIZZLE_32B: return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B: return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B: return 128;
    default: return -1;
  }
}

}  // namespace

std::size_t TensorMap::box_bytes() const {
  std::size_t bytes = element_bytes;
  for (std::size_t i = 0; i < rank; ++i) bytes *= box[i];
  return bytes;
}

CUresult CUDAAPI encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* extents,
                                   const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t* steps,
                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                   CUtensorMapFloatOOBfill fill) {
  // #lizard forgives(parameter_count): the signature of the driver's cuTensorMapEncodeTiled
  const int element = element_bytes_of(type), swizzle_bytes = swizzle_bytes_of(swizzle);
  bool good = reinterpret_cast<std::uintptr_t>(map) % 64 == 0 && rank >= 1 && rank <= 5 && base != nullptr && element > 0 &&
              swizzle_bytes >= 0 && reinterpret_cast<std::uintptr_t>(base) % 16 == 0 && interleave == CU_TENSOR_MAP_INTERLEAVE_NONE &&
              fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  if (!good) return CUDA_ERROR_INVALID_VALUE;
  TensorMap made;
  made.rank = static_cast<std::uint8_t>(rank);
  made.element_bytes = static_cast<std::uint8_t>(element);
  made.swizzle_bytes = static_cast<std::uint8_t>(swizzle_bytes);
  made.base = static_cast<const std::byte*>(base);
  for (cuuint32_t i = 0; i < rank; ++i) {
    const cuuint64_t stride = i == 0 ? static_cast<cuuint64_t>(element) : strides[i - 1];
    good = good && extents[i] >= 1 && extents[i] <= (cuuint64_t{1} << 32) && box[i] >= 1 && box[i] <= 256 && steps[i] == 1 &&
           (i == 0 || stride % 16 == 0) && stride < (cuuint64_t{1} << 40);
    made.extents[i] = static_cast<std::uint32_t>(extents[i]);
    made.box[i] = static_cast<std::uint16_t>(box[i]);
    made.stride_bytes[i] = stride;
  }
  const cuuint64_t inner = box[0] * static_cast<cuuint64_t>(element);
  if (!good || inner % 16 != 0 || (swizzle_bytes > 0 && inner > static_cast<cuuint64_t>(swizzle_bytes))) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}

void fill_box(const TensorMap& map, const std::array<int, 5>& start, std::byte* base, std::uint32_t base_address, std::uint32_t address) {
  const std::size_t inner = std::size_t{map.box[0]} * map.element_bytes;
  const std::size_t rows = map.box_bytes() / inner;
  const auto extent = [&](std::size_t i) { return map.extents[i] == 0 ? std::int64_t{1} << 32 : std::int64_t{map.extents[i]}; };
  for (std::size_t row = 0; row < rows; ++row) {
    std::size_t rest = row;
    bool inside = true;
    const std::byte* from = map.base;
    for (std::size_t i = 1; i < map.rank; ++i) {
      const std::int64_t at = std::int64_t{start[i]} + static_cast<std::int64_t>(rest % map.box[i]);
      rest /= map.box[i];
      inside = inside && at >= 0 && at < extent(i);
      from += inside ? at * static_cast<std::int64_t>(map.stride_bytes[i]) : 0;
    }
    for (std::size_t chunk = 0; chunk < inner; chunk += 16) {
      std::byte* to = base + (swizzled(address + static_cast<std::uint32_t>(row * inner + chunk), map.swizzle_bytes) - base_address);
      for (std::size_t b = 0; b < 16; b += map.element_bytes) {
        const std::int64_t column = std::int64_t{start[0]} + static_cast<std::int64_t>((chunk + b) / map.element_bytes);
        if (inside && column >= 0 && column < extent(0)) {
          std::memcpy(to + b, from + column * map.element_bytes, map.element_bytes);
        } else {
          std::memset(to + b, 0, map.element_bytes);
        }
      }
    }
  }
}

}  // namespace fovea::gpu::sm100::emulation
