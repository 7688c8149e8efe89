// SPDX-License-Identifier: Apache-2.0
/// Descriptors for the tensor copies (TMA) of Hopper and later. The encoder of the driver is found through the runtime, so nothing links
/// libcuda.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>

#include "fovea/tensor.hpp"
#include "gpu/runtime.hpp"

namespace fovea::gpu {

/// A tensor of 1 to 5 dimensions, innermost first, and its TMA box. Elements outside the tensor arrive as zeros.
struct TensorMapDesc {
  struct Dimension {
    std::int64_t extent = 1;
    std::int64_t stride = 1;  ///< elements; of the innermost dimension 1
    int box = 1;
  };
  DType dtype = DType::bf16;
  int rank = 2;
  std::array<Dimension, 5> dimensions{};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion l2_promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B;
};

inline CUtensorMapDataType tensor_map_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case DType::f16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case DType::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case DType::i32: return CU_TENSOR_MAP_DATA_TYPE_INT32;
    case DType::i64: return CU_TENSOR_MAP_DATA_TYPE_INT64;
    default: return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

/// The driver's cuTensorMapEncodeTiled, looked up once.
inline Result<decltype(&cuTensorMapEncodeTiled)> tensor_map_encoder() {
  static const auto kFound = []() -> Result<decltype(&cuTensorMapEncodeTiled)> {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult answer{};
    const Result<void> asked = check(
        "cuTensorMapEncodeTiled", cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &answer));
    if (!asked) return asked.error();
    if (answer != cudaDriverEntryPointSuccess || function == nullptr) {
      return Error{ErrorCode::device_error, "cuTensorMapEncodeTiled: the driver has none; want CUDA 12.0 or newer"};
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return kFound;
}

/// Host work of a fraction of a microsecond, in any thread. `base` and every stride must be multiples of 16 bytes. A box has at most 256
/// elements a dimension, and an innermost extent no wider than the swizzle (128 bytes).
inline Result<CUtensorMap> encode_tensor_map(const void* base, const TensorMapDesc& desc) {
  const auto encoder = tensor_map_encoder();
  if (!encoder) return encoder.error();
  std::array<cuuint64_t, 5> extents{}, stride_bytes{};
  std::array<cuuint32_t, 5> box{}, steps{};
  const auto rank = static_cast<std::size_t>(desc.rank);
  for (std::size_t i = 0; i < rank; ++i) {
    extents[i] = static_cast<cuuint64_t>(desc.dimensions[i].extent);
    box[i] = static_cast<cuuint32_t>(desc.dimensions[i].box);
    steps[i] = 1;
    if (i > 0) stride_bytes[i - 1] = static_cast<cuuint64_t>(desc.dimensions[i].stride) * size_of(desc.dtype);
  }
  CUtensorMap map{};
  const CUresult status = (*encoder)(&map, tensor_map_type(desc.dtype), static_cast<cuuint32_t>(rank), const_cast<void*>(base),
                                     extents.data(), stride_bytes.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                                     desc.swizzle, desc.l2_promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status == CUDA_SUCCESS) return map;
  return Error{ErrorCode::device_error, "cuTensorMapEncodeTiled: CUresult " + std::to_string(static_cast<int>(status))};
}

}  // namespace fovea::gpu
