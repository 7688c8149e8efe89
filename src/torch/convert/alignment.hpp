// SPDX-License-Identifier: Apache-2.0
/// The alignment that a plan is promised: one rule for the extension and for the Python module.
#pragma once

#include <cstdint>

namespace fovea::binding {

/// The largest alignment that a plan is promised, in bytes: the widest access of a kernel. Memory that is aligned further serves the same
/// plan.
inline constexpr std::uintptr_t kLargestAlignment = 16;

inline std::int32_t alignment_of_address(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data) | kLargestAlignment;
  return static_cast<std::int32_t>(address & (~address + 1));
}

}  // namespace fovea::binding
