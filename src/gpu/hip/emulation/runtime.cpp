// SPDX-License-Identifier: Apache-2.0
/// A HIP runtime of two devices, a gfx90a and a gfx942, which runs kernels in emulation and in the host's memory. A program that links this
/// has these devices, whatever the machine.
#include "gpu/hip/runtime.hpp"

#include <cstring>
#include <string>

#include "gpu/hip/emulation/machine.hpp"

namespace fovea::gpu::hip {
namespace {

enum : Status { kSuccess = 0, kInvalidValue = 1, kInvalidDevice = 101, kNotFound = 500, kLaunchFailure = 719 };

thread_local int current = 0;
thread_local std::string fault;

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < static_cast<int>(kDescribedDevices.size()); }

Status count_devices(int* count) {
  *count = static_cast<int>(kDescribedDevices.size());
  return kSuccess;
}

Status attribute(int* value, int which, int ordinal) {
  if (!is_device(ordinal)) return kInvalidDevice;
  const DeviceProperties& device = kDescribedDevices[static_cast<std::size_t>(ordinal)];
  switch (which) {
    case kAttributeMajor: *value = device.capability / 10; return kSuccess;
    case kAttributeMinor: *value = device.capability % 10; return kSuccess;
    case kAttributeMultiprocessors: *value = device.compute_units; return kSuccess;
    default: return kInvalidValue;
  }
}

Status name(char* text, int bytes, int ordinal) {
  if (!is_device(ordinal)) return kInvalidDevice;
  const std::string device = "emulated " + std::string(target_of(kDescribedDevices[static_cast<std::size_t>(ordinal)].capability));
  std::strncpy(text, device.c_str(), static_cast<std::size_t>(bytes));
  return kSuccess;
}

Status get_device(int* ordinal) {
  *ordinal = current;
  return kSuccess;
}
Status set_device(int ordinal) {
  if (!is_device(ordinal)) return kInvalidDevice;
  current = ordinal;
  return kSuccess;
}

Status last_error() { return kSuccess; }
const char* error_name(Status status) {
  if (status == kLaunchFailure) return fault.c_str();
  return status == kInvalidDevice ? "hipErrorInvalidDevice" : status == kNotFound ? "hipErrorNotFound" : "hipErrorInvalidValue";
}

/// Every module has every kernel.
Status load_module(ModuleHandle* module, const void* image) {
  *module = const_cast<void*>(image);
  return kSuccess;
}
Status get_function(FunctionHandle* function, ModuleHandle, const char* kernel) {
  const emulation::Kernel* found = emulation::find_kernel(kernel);
  *function = const_cast<emulation::Kernel*>(found);
  return found == nullptr ? kNotFound : kSuccess;
}

Status launch(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
              unsigned block_z, unsigned shared_bytes, void*, void** params, void**) {
  // #lizard forgives(parameter_count): the signature of hipModuleLaunchKernel
  const auto& kernel = *static_cast<const emulation::Kernel*>(function);
  const bool good = grid_x > 0 && grid_y > 0 && grid_z > 0 && std::uint64_t{grid_x} * block_x < (std::uint64_t{1} << 32) &&
                    grid_y <= 65535 && grid_z <= 65535 && block_x == static_cast<unsigned>(kernel.threads) && block_y == 1 &&
                    block_z == 1 && shared_bytes == 0;
  if (!good) return kInvalidValue;
  const emulation::Shape shape{{grid_x, grid_y, grid_z}, kernel.threads};
  if (auto wrong = emulation::run(kernel.body, params[0], shape, emulation::order_of_launches())) {
    fault = std::string(kernel.name) + ": " + *wrong;
    return kLaunchFailure;
  }
  return kSuccess;
}

constexpr Runtime kRuntime{count_devices, attribute,  name,        get_device,   set_device,
                           last_error,    error_name, load_module, get_function, launch};

constexpr unsigned char kImage[1]{};
/// The registry has the kernels of all sources.
constexpr std::array kCode = [] {
  constexpr std::array kSources{FOVEA_HIP_KERNELS};  // by CMake
  std::array<CodeObject, 2 * kSources.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = {target_of(kDescribedDevices[i % 2].capability), kSources[i / 2], kImage};
  return all;
}();

}  // namespace

const FoundRuntime& found_runtime() {
  static const FoundRuntime kFound{&kRuntime, {}};
  return kFound;
}

std::span<const CodeObject> code_objects() { return kCode; }

}  // namespace fovea::gpu::hip
