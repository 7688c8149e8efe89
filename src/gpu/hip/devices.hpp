// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "fovea/info.hpp"

namespace fovea::gpu::hip {

/// The HIP devices of this machine. None without a runtime.
void append_devices(std::vector<DeviceInfo>& all);

}  // namespace fovea::gpu::hip
