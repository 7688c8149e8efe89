// SPDX-License-Identifier: Apache-2.0
/// Held plans, as the extension gives them to the Python module (plans/python): plain C, because each is a library of its own.
#pragma once

#include <cstddef>

namespace fovea::binding {

struct PlanTable {
  std::size_t bytes = sizeof(PlanTable);  ///< differs if the libraries have different versions
  void (*release)(void* plan);
  /// Runs a plan over the address of each tensor of the operator's schema in order, null for absent ones. `schedule` is the memory that
  /// prepare() filled, or null. Returns null, or the error's text, which lives until the thread's next call.
  const char* (*run)(const void* plan, void* const* addresses, void* schedule);
  /// Fills `schedule`, of the plan's workspace bytes, from the lengths in device memory. Otherwise as run.
  const char* (*prepare)(const void* plan, void* const* addresses, void* schedule);
};

}  // namespace fovea::binding
