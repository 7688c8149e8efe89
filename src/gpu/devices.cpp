// SPDX-License-Identifier: Apache-2.0
#include "gpu/devices.hpp"

#include "gpu/runtime.hpp"

namespace fovea::gpu {

void append_devices(std::vector<DeviceInfo>& all) {
  const auto& table = device_table().devices;
  for (int ordinal = 0; ordinal < static_cast<int>(table.size()); ++ordinal) {
    const DeviceProperties& device = table[static_cast<std::size_t>(ordinal)];
    cudaDeviceProp described{};
    const bool named = check("cudaGetDeviceProperties", cudaGetDeviceProperties(&described, ordinal)).has_value();
    all.push_back({.device = {Backend::cuda, ordinal},
                   .name = named ? described.name : "CUDA device",
                   .features = {"sm" + std::to_string(device.capability)},
                   .cores = device.multiprocessors});
  }
}

}  // namespace fovea::gpu
