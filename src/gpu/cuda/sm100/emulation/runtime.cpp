// SPDX-License-Identifier: Apache-2.0
/// A CUDA runtime of one device of compute capability 10.0, whose kernels run in emulation and whose
/// memory is the host's. A program that links this has that device, whatever the machine.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "gpu/cuda/sm100/emulation/machine.hpp"
#include "gpu/cuda/sm100/emulation/registration.hpp"
#include "gpu/cuda/sm100/emulation/tensor_map.hpp"

namespace fovea::gpu::sm100::emulation {
namespace {

constexpr int kMultiprocessors = 148, kSharedBytes = 227 << 10;

std::string& fault() {
  static std::string text;
  return text;
}

std::vector<Kernel>& kernels() {
  static std::vector<Kernel> all;
  return all;
}

struct Call {
  const Kernel* kernel;
  const void* params;
};

/// Each launch has another schedule, the same in each run of a program. FOVEA_EMULATED_SEED in the
/// environment has others.
Schedule next_schedule() {
  static const char* const kSeed = std::getenv("FOVEA_EMULATED_SEED");
  static std::uint64_t launches = kSeed == nullptr ? 0 : std::strtoull(kSeed, nullptr, 10) * 1000003;
  const std::uint64_t seed = launches++;
  return {static_cast<Order>(seed % 4), static_cast<Timing>(seed / 4 % 3), seed};
}

cudaError_t launch(const cudaLaunchConfig_t& config, const Kernel& kernel, const void* params) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const bool good = grid.x >= 1 && grid.x <= 0x7fffffff && grid.y == 1 && grid.z == 1 && block.y == 1 && block.z == 1 && block.x <= 1024;
  if (!good) return cudaErrorInvalidConfiguration;
  if (config.dynamicSmemBytes > kSharedBytes) return cudaErrorInvalidValue;
  const Call call{&kernel, params};
  const auto body = [](const void* context) {
    const auto& it = *static_cast<const Call*>(context);
    it.kernel->call(it.kernel->address, it.params);
  };
  const Schedule schedule = next_schedule();
  const auto wrong = run(body, &call, {static_cast<int>(grid.x), static_cast<int>(block.x), config.dynamicSmemBytes}, schedule);
  if (!wrong) return cudaSuccess;
  fault() = std::string(kernel.name) + ", order " + std::to_string(static_cast<int>(schedule.order)) + ", timing " +
            std::to_string(static_cast<int>(schedule.timing)) + ", seed " + std::to_string(schedule.seed) + ": " + *wrong;
  return cudaErrorLaunchFailure;
}

}  // namespace

void Registration::add(const Kernel& kernel) { kernels().push_back(kernel); }

const Kernel* find_kernel(const void* address) {
  const auto found = std::find_if(kernels().begin(), kernels().end(), [&](const Kernel& it) { return it.address == address; });
  return found == kernels().end() ? nullptr : &*found;
}

}  // namespace fovea::gpu::sm100::emulation

using namespace fovea::gpu::sm100::emulation;  // NOLINT: what follows is C

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int ordinal) {
  if (ordinal != 0) return cudaErrorInvalidDevice;
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor: *value = 10; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedBytes; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = kSharedBytes + 1024; return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = 126 << 20; return cudaSuccess;
    default: return cudaErrorInvalidValue;
  }
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  if (ordinal != 0) return cudaErrorInvalidDevice;
  *properties = {};
  std::strcpy(properties->name, "emulated SM100");
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = 100;
  return find_kernel(kernel) != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

cudaError_t cudaGetDevice(int* ordinal) {
  *ordinal = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int ordinal) { return ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetLastError() { return cudaSuccess; }

const char* cudaGetErrorName(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : status == cudaSuccess ? "cudaSuccess" : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t status) {
  return status == cudaErrorLaunchFailure ? fault().c_str() : "refused by the emulation";
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute which, int value) {
  const bool good = which == cudaFuncAttributeMaxDynamicSharedMemorySize && value <= kSharedBytes && find_kernel(kernel) != nullptr;
  return good ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* kernel, void** params) {
  const Kernel* found = find_kernel(kernel);
  return found == nullptr ? cudaErrorInvalidDeviceFunction : launch(*config, *found, params[0]);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
  const bool known = std::string_view(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  *answer = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // extern "C"
