// SPDX-License-Identifier: Apache-2.0
/// The kernels that are linked into a program for emulation, by name.
#pragma once

#include <string_view>

namespace fovea::gpu::emulation {

struct Kernel {
  std::string_view name{};
  void (*body)(const void* params) = nullptr;
  int threads = 0;  ///< of a workgroup
};

struct Registration {
  Registration(std::string_view name, void (*body)(const void* params), int threads);
};

/// Null if there is none.
const Kernel* find_kernel(std::string_view name);

}  // namespace fovea::gpu::emulation
