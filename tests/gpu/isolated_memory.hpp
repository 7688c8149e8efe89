// SPDX-License-Identifier: Apache-2.0
/// Device memory with nothing mapped before it or behind it, so that a kernel that touches its neighbourhood fails.
#pragma once

#include <cstddef>

#include "fovea/device.hpp"

namespace fovea::check {

/// On the current device. Memory begins where its mapping does. Throws on failure.
void* isolated_allocate(Device device, std::size_t bytes);
/// False where the memory is not of isolated_allocate().
bool isolated_free(void* memory);

}  // namespace fovea::check
