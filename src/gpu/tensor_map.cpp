// SPDX-License-Identifier: Apache-2.0
#include "gpu/tensor_map.hpp"

#include <string>

#include "gpu/launch.hpp"

namespace fovea::gpu {
namespace {

CUtensorMapDataType type_of(DType dtype) {
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
Result<decltype(&cuTensorMapEncodeTiled)> tensor_map_encoder() {
  static const auto kFound = []() -> Result<decltype(&cuTensorMapEncodeTiled)> {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult answer{};
    const CudaStatus asked("cuTensorMapEncodeTiled",
                           cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &answer));
    if (!asked) return asked.error();
    if (answer != cudaDriverEntryPointSuccess || function == nullptr) {
      return Error{ErrorCode::device_error, "cuTensorMapEncodeTiled: the driver has none; want CUDA 12.0 or newer"};
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
  }();
  return kFound;
}

}  // namespace

Result<CUtensorMap> encode_tensor_map(const void* base, const TensorMapDesc& desc) {
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
  const CUresult status =
      (*encoder)(&map, type_of(desc.dtype), static_cast<cuuint32_t>(rank), const_cast<void*>(base), extents.data(), stride_bytes.data(),
                 box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, desc.swizzle, desc.l2_promotion, desc.fill);
  if (status == CUDA_SUCCESS) return map;
  return Error{ErrorCode::device_error, "cuTensorMapEncodeTiled: CUresult " + std::to_string(static_cast<int>(status))};
}

}  // namespace fovea::gpu
