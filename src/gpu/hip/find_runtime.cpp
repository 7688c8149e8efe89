// SPDX-License-Identifier: Apache-2.0
/// Finds the machine's HIP runtime. Emulation replaces this file.
#include <dlfcn.h>

#include "gpu/hip/runtime.hpp"

namespace fovea::gpu::hip {
namespace {

/// Names of HIP 7, 6 and 5; the first is that of a development package.
void* open_library() {
  for (const char* name : {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

FoundRuntime look_up() {
  void* library = open_library();
  if (library == nullptr) return {nullptr, "no HIP runtime (libamdhip64.so is not found)"};
  static Runtime runtime;
  const bool all = find(library, "hipGetDeviceCount", runtime.get_device_count) &&
                   find(library, "hipDeviceGetAttribute", runtime.get_attribute) && find(library, "hipDeviceGetName", runtime.get_name) &&
                   find(library, "hipGetDevice", runtime.get_device) && find(library, "hipSetDevice", runtime.set_device) &&
                   find(library, "hipGetLastError", runtime.get_last_error) && find(library, "hipGetErrorName", runtime.name_of_error) &&
                   find(library, "hipModuleLoadData", runtime.load_module) && find(library, "hipModuleGetFunction", runtime.get_function) &&
                   find(library, "hipModuleLaunchKernel", runtime.launch);
  if (!all) return {nullptr, "no HIP runtime (libamdhip64.so lacks functions)"};
  return {&runtime, {}};
}

}  // namespace

const FoundRuntime& found_runtime() {
  static const FoundRuntime kFound = look_up();
  return kFound;
}

}  // namespace fovea::gpu::hip
