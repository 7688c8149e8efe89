// SPDX-License-Identifier: Apache-2.0
#include "gpu/hip/devices.hpp"

#include "gpu/hip/runtime.hpp"

namespace fovea::gpu::hip {

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
