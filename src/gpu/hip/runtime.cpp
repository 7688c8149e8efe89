// SPDX-License-Identifier: Apache-2.0
#include "gpu/hip/runtime.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <tuple>

#include "gpu/common/find_device.hpp"
#include "op/common/checks.hpp"

namespace fovea::gpu::hip {
namespace {

int attribute(int which, int ordinal) {
  int value = 0;
  return found_runtime().functions->get_attribute(&value, which, ordinal) == 0 ? value : 0;
}

DeviceTable look_up_devices() {
  const FoundRuntime& runtime = found_runtime();
  if (runtime.functions == nullptr) return {{}, runtime.why_none};
  int count = 0;
  if (const Result<void> counted = check("hipGetDeviceCount", runtime.functions->get_device_count(&count)); !counted) {
    return {{}, "no HIP device (" + counted.error().message + ")"};
  }
  DeviceTable table;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    table.devices.push_back({.capability = 10 * attribute(kAttributeMajor, ordinal) + attribute(kAttributeMinor, ordinal),
                             .compute_units = attribute(kAttributeMultiprocessors, ordinal)});
  }
  if (count == 0) table.why_none = "no HIP device";
  return table;
}

/// Null where the build has no kernels for the target.
const CodeObject* find_code(std::string_view target, std::string_view source) {
  const auto all = code_objects();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const CodeObject& code) { return code.target == target && code.source == source; });
  return found == all.end() ? nullptr : &*found;
}

Result<ModuleHandle> load(int ordinal, std::string_view source) {
  const std::string_view target = target_of(properties({Backend::hip, ordinal, 0})->capability);
  const CodeObject* code = find_code(target, source);
  if (code == nullptr) return detail::declined("kernels of this build", "none for " + std::string(target), "a build with clang-19");
  const ScopedDevice device(ordinal);
  if (!device.status()) return device.status().error();
  ModuleHandle module = nullptr;
  const Result<void> loaded = check("hipModuleLoadData", found_runtime().functions->load_module(&module, code->image));
  // A device of another stepping has the same capability: gfx900 is no gfx90a.
  if (!loaded) return Error{ErrorCode::unsupported, "kernels for " + std::string(target) + " do not load: " + loaded.error().message};
  return module;
}

}  // namespace

Result<void> check(std::string_view action, Status status) {
  if (status == 0) return {};
  const Runtime& runtime = *found_runtime().functions;
  static_cast<void>(runtime.get_last_error());
  return Error{ErrorCode::device_error, std::string(action).append(": ").append(runtime.name_of_error(status))};
}

const DeviceTable& device_table() {
  static const DeviceTable kTable = look_up_devices();
  return kTable;
}

const DeviceProperties* properties(Device device) { return find_device(device, kDescribedDevices, device_table().devices); }

std::string_view unavailable() {
  static const std::string kReason = [] {
    const DeviceTable& table = device_table();
    if (table.devices.empty()) return table.why_none;
    const auto fits = [](const DeviceProperties& device) { return !target_of(device.capability).empty(); };
    if (std::none_of(table.devices.begin(), table.devices.end(), fits)) return std::string("needs a HIP device of gfx90a or gfx942");
    return std::string(code_objects().empty() ? "built without clang-19, which compiles the kernels" : "");
  }();
  return kReason;
}

std::optional<Error> decline_device(Device device) {
  const DeviceProperties* found = properties(device);
  if (found == nullptr && device.capability != 0)
    return detail::declined("device.capability", device.capability, "90 (gfx90a) or 94 (gfx942)");
  if (found == nullptr) {
    return detail::declined("device.ordinal", device.ordinal, "0 to " + std::to_string(device_table().devices.size() - 1));
  }
  if (!target_of(found->capability).empty()) return std::nullopt;
  return detail::declined("device (capability)", found->capability, "90 (gfx90a) or 94 (gfx942)");
}

ScopedDevice::~ScopedDevice() {
  if (switched_) static_cast<void>(found_runtime().functions->set_device(previous_));
}

Result<void> ScopedDevice::make_current(int ordinal) {
  const Runtime& runtime = *found_runtime().functions;
  const Result<void> asked = check("hipGetDevice", runtime.get_device(&previous_));
  if (!asked || previous_ == ordinal) return asked;
  const Result<void> set = check("hipSetDevice", runtime.set_device(ordinal));
  switched_ = set.has_value();
  return set;
}

Result<FunctionHandle> find_kernel(int ordinal, std::string_view source, const std::string& name) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, ModuleHandle> modules;
  static std::map<std::pair<int, std::string>, FunctionHandle> kernels;
  const std::scoped_lock lock(mutex);
  if (const auto known = kernels.find({ordinal, name}); known != kernels.end()) return known->second;
  ModuleHandle& module = modules[{ordinal, std::string(source)}];
  if (module == nullptr) {
    Result<ModuleHandle> loaded = load(ordinal, source);
    if (!loaded) return loaded.error();
    module = *loaded;
  }
  FunctionHandle function = nullptr;
  const Result<void> got = check("hipModuleGetFunction " + name, found_runtime().functions->get_function(&function, module, name.c_str()));
  if (!got) return got.error();
  kernels[{ordinal, name}] = function;
  return function;
}

Result<void> launch(FunctionHandle kernel, const LaunchShape& shape, Stream stream, const void* params) {
  void* pointers[]{const_cast<void*>(params)};
  return check("kernel launch", found_runtime().functions->launch(kernel, shape.grid[0], shape.grid[1], shape.grid[2], shape.threads, 1, 1,
                                                                  0, stream.handle, pointers, nullptr));
}

void append_devices(std::vector<DeviceInfo>& all) {
  const auto& table = device_table().devices;
  for (int ordinal = 0; ordinal < static_cast<int>(table.size()); ++ordinal) {
    const DeviceProperties& device = table[static_cast<std::size_t>(ordinal)];
    char name[256] = "HIP device";
    static_cast<void>(check("hipDeviceGetName", found_runtime().functions->get_name(name, sizeof name, ordinal)));
    const std::string target(target_of(device.capability));
    all.push_back({.device = {Backend::hip, ordinal},
                   .name = name,
                   .features = target.empty() ? std::vector<std::string>{} : std::vector{target},
                   .cores = device.compute_units});
  }
}

}  // namespace fovea::gpu::hip
