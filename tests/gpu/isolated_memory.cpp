// SPDX-License-Identifier: Apache-2.0
#include "isolated_memory.hpp"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <map>
#include <stdexcept>
#include <string>

namespace fovea::check {
namespace {

/// A function of the driver, called; programs do not link to the driver.
template <class Function, class... Arguments>
void call(const char* name, Arguments... arguments) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult answer{};
  static_cast<void>(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &answer));
  if (function == nullptr) throw std::runtime_error(std::string(name) + ": the driver has none");
  const CUresult status = reinterpret_cast<Function*>(function)(arguments...);
  if (status != CUDA_SUCCESS) throw std::runtime_error(std::string(name) + ": CUresult " + std::to_string(status));
}
#define FOVEA_CALL(name, ...) call<decltype(name)>(#name, __VA_ARGS__)

/// A mapping in the middle of a reserved range.
struct Mapping {
  CUdeviceptr range = 0;
  std::size_t range_bytes = 0, bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
};

std::map<void*, Mapping>& mappings() {
  static std::map<void*, Mapping> all;
  return all;
}

}  // namespace

void* isolated_allocate(Device device, std::size_t bytes) {
  constexpr std::size_t kApart = std::size_t{64} << 20;
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device.ordinal;
  std::size_t unit = 0;
  FOVEA_CALL(cuMemGetAllocationGranularity, &unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  Mapping mapping{.bytes = (bytes + unit - 1) / unit * unit};
  if (mapping.bytes == 0) mapping.bytes = unit;
  mapping.range_bytes = mapping.bytes + 2 * kApart;
  FOVEA_CALL(cuMemAddressReserve, &mapping.range, mapping.range_bytes, std::size_t{0}, CUdeviceptr{0}, 0ULL);
  FOVEA_CALL(cuMemCreate, &mapping.handle, mapping.bytes, &properties, 0ULL);
  const CUdeviceptr at = mapping.range + kApart;
  FOVEA_CALL(cuMemMap, at, mapping.bytes, std::size_t{0}, mapping.handle, 0ULL);
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  FOVEA_CALL(cuMemSetAccess, at, mapping.bytes, &access, std::size_t{1});
  auto* const memory = reinterpret_cast<void*>(at);
  mappings()[memory] = mapping;
  return memory;
}

bool isolated_free(void* memory) {
  const auto found = mappings().find(memory);
  if (found == mappings().end()) return false;
  const Mapping mapping = found->second;
  mappings().erase(found);
  try {
    FOVEA_CALL(cuMemUnmap, reinterpret_cast<CUdeviceptr>(memory), mapping.bytes);
    FOVEA_CALL(cuMemRelease, mapping.handle);
    FOVEA_CALL(cuMemAddressFree, mapping.range, mapping.range_bytes);
  } catch (const std::runtime_error&) {  // of a context that a kernel has broken
  }
  return true;
}

}  // namespace fovea::check
