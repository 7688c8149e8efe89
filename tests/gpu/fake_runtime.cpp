// SPDX-License-Identifier: Apache-2.0
#include "fake_runtime.hpp"

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <utility>

namespace fovea::check {
namespace {

constexpr std::size_t kSharedWithoutAsking = 48 << 10;

int current = 0;
cudaError_t launch_status = cudaSuccess;
std::map<std::pair<int, const void*>, std::size_t> shared_asked_for;

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < static_cast<int>(kFakeDevices.size()); }

bool within(dim3 shape, unsigned x, unsigned y, unsigned z) {
  return shape.x >= 1 && shape.y >= 1 && shape.z >= 1 && shape.x <= x && shape.y <= y && shape.z <= z;
}

/// Checks the limits that all compute capabilities share, and that clusters fill the grid.
cudaError_t judge(const cudaLaunchConfig_t& config, const void* kernel) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (!within(grid, 0x7fffffff, 65535, 65535)) return cudaErrorInvalidConfiguration;
  if (!within(block, 1024, 1024, 64) || block.x * block.y * block.z > 1024) return cudaErrorInvalidConfiguration;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id != cudaLaunchAttributeClusterDimension) continue;
    const auto& cluster = config.attrs[i].val.clusterDim;
    if (grid.x % cluster.x != 0 || grid.y % cluster.y != 0 || grid.z % cluster.z != 0) return cudaErrorInvalidClusterSize;
  }
  const auto asked = shared_asked_for.find({current, kernel});
  const std::size_t allowed = asked == shared_asked_for.end() ? kSharedWithoutAsking : asked->second;
  return config.dynamicSmemBytes > allowed ? cudaErrorInvalidValue : cudaSuccess;
}

/// The rules of tiled copies, as the driver's documentation states them.
CUresult CUDAAPI encode(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* base, const cuuint64_t* extents,
                        const cuuint64_t* strides, const cuuint32_t* box, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                        CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  // #lizard forgives(parameter_count): the signature of the driver's cuTensorMapEncodeTiled
  constexpr std::uint64_t kMostExtent = std::uint64_t{1} << 32, kMostStride = std::uint64_t{1} << 40;
  const std::uint64_t element = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 ? 1 : type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : 2;
  bool good = rank >= 1 && rank <= 5 && base != nullptr && reinterpret_cast<std::uintptr_t>(base) % 16 == 0;
  for (cuuint32_t i = 0; i < rank; ++i) {
    good = good && extents[i] >= 1 && extents[i] <= kMostExtent && box[i] >= 1 && box[i] <= 256;
    if (i > 0) good = good && strides[i - 1] % 16 == 0 && strides[i - 1] < kMostStride;
  }
  if (!good || box[0] * element % 16 != 0 || box[0] * element > 128) return CUDA_ERROR_INVALID_VALUE;
  std::memset(map, 0, sizeof *map);
  return CUDA_SUCCESS;
}

}  // namespace

std::vector<Launch>& launches() {
  static std::vector<Launch> noted;
  return noted;
}

void set_launch_status(cudaError_t status) { launch_status = status; }

}  // namespace fovea::check

using namespace fovea::check;  // NOLINT: what follows is C

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = static_cast<int>(kFakeDevices.size());
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int ordinal) {
  if (!is_device(ordinal)) return cudaErrorInvalidDevice;
  const FakeDevice& device = kFakeDevices[static_cast<std::size_t>(ordinal)];
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = device.capability / 10; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = device.capability % 10; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = device.multiprocessors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = device.shared_bytes; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = device.shared_bytes + 1024; return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = 32 << 20; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (!is_device(ordinal)) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, kFakeDevices[static_cast<std::size_t>(ordinal)].name);
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int ordinal) {
  if (!is_device(ordinal)) return cudaErrorInvalidDevice;
  current = ordinal;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  if (which != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorInvalidValue;
  if (value > kFakeDevices[static_cast<std::size_t>(current)].shared_bytes) return cudaErrorInvalidValue;
  shared_asked_for[{current, kernel}] = static_cast<std::size_t>(value);
  return cudaSuccess;
}

/// As if each device had code of its own.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = kFakeDevices[static_cast<std::size_t>(current)].capability;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void**) {
  const cudaError_t status = launch_status == cudaSuccess ? judge(*config, kernel) : launch_status;
  if (status == cudaSuccess) launches().push_back({current, kernel, config->gridDim, config->blockDim});
  return status;
}

cudaError_t cudaMemsetAsync(void* to, int, std::size_t bytes, cudaStream_t) {
  return to == nullptr && bytes > 0 ? cudaErrorInvalidValue : launch_status;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *function = known ? reinterpret_cast<void*>(&encode) : nullptr;
  *answer = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
