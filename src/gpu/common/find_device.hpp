// SPDX-License-Identifier: Apache-2.0
/// Devices of a backend, by the descriptions that callers give.
#pragma once

#include <algorithm>
#include <cstddef>

#include "fovea/device.hpp"

namespace fovea::gpu {

/// One of `present`, by its ordinal, or of `described`, by its compute capability. Null if there is no such device.
template <class Described, class Present>
auto find_device(Device device, const Described& described, const Present& present) -> decltype(present.data()) {
  if (device.capability != 0) {
    const auto is_it = [&](const auto& candidate) { return candidate.capability == device.capability; };
    const auto found = std::find_if(described.begin(), described.end(), is_it);
    return found == described.end() ? nullptr : &*found;
  }
  const auto ordinal = static_cast<std::size_t>(device.ordinal);
  return device.ordinal >= 0 && ordinal < present.size() ? &present[ordinal] : nullptr;
}

}  // namespace fovea::gpu
