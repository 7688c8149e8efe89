// SPDX-License-Identifier: Apache-2.0
/// Kernels by the address that a launch has.
#pragma once

#include <string_view>

namespace fovea::gpu::sm100::emulation {

struct Kernel {
  std::string_view name{};
  const void* address = nullptr;
  void (*call)(const void* address, const void* params) = nullptr;
};

/// Null if there is none.
const Kernel* find_kernel(const void* address);

class Registration {
 public:
  template <class Params>
  Registration(std::string_view name, void (*kernel)(Params)) {
    add({name, reinterpret_cast<const void*>(kernel), [](const void* address, const void* params) {
           reinterpret_cast<void (*)(Params)>(const_cast<void*>(address))(*static_cast<const Params*>(params));
         }});
  }

 private:
  static void add(const Kernel& kernel);
};

}  // namespace fovea::gpu::sm100::emulation
