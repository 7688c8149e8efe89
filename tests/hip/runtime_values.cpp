// SPDX-License-Identifier: Apache-2.0
/// The library declares by itself what it uses of HIP. Here a HIP header checks it, where one is installed.
#include <hip/hip_runtime_api.h>

#include <type_traits>

#include "gpu/hip/runtime.hpp"

namespace fovea::gpu::hip {

static_assert(kAttributeMajor == hipDeviceAttributeComputeCapabilityMajor);
static_assert(kAttributeMinor == hipDeviceAttributeComputeCapabilityMinor);
static_assert(kAttributeMultiprocessors == hipDeviceAttributeMultiprocessorCount);
static_assert(hipSuccess == 0 && sizeof(hipError_t) == sizeof(Status) && sizeof(hipDeviceAttribute_t) == sizeof(int));
static_assert(sizeof(hipModule_t) == sizeof(ModuleHandle) && sizeof(hipFunction_t) == sizeof(FunctionHandle));
static_assert(std::is_same_v<decltype(&hipModuleLaunchKernel), hipError_t (*)(hipFunction_t, unsigned, unsigned, unsigned, unsigned,
                                                                              unsigned, unsigned, unsigned, hipStream_t, void**, void**)>);
static_assert(std::is_same_v<decltype(&hipModuleGetFunction), hipError_t (*)(hipFunction_t*, hipModule_t, const char*)>);
static_assert(std::is_same_v<decltype(&hipModuleLoadData), hipError_t (*)(hipModule_t*, const void*)>);

}  // namespace fovea::gpu::hip
