// SPDX-License-Identifier: Apache-2.0
/// Held plans, as the extension gives them to the Python module (plans/python): plain C, because each is a library of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::binding {

/// Runs the plan that an earlier call of the operator left in this thread under this key (convert/call_key.hpp), over the address of each
/// tensor, null for absent ones. False if there is none. Raises what the run raises.
struct KnownCall {
  const std::int64_t* key;
  std::size_t words;
  void* const* addresses;
  void* schedule;  ///< null without one
  std::size_t schedule_bytes;
};
using RunKnown = bool(const KnownCall& call);

struct PlanTable {
  std::size_t bytes = sizeof(PlanTable);  ///< differs if the libraries have different versions
  void (*release)(void* plan);
  /// Runs a plan over the address of each tensor of the operator's schema in order, null for absent ones. `schedule` is the memory that
  /// prepare() filled, or null. Returns null, or the error's text, which lives until the thread's next call.
  const char* (*run)(const void* plan, void* const* addresses, void* schedule);
  /// Fills `schedule`, of the plan's workspace bytes, from the lengths in device memory. Otherwise as run.
  const char* (*prepare)(const void* plan, void* const* addresses, void* schedule);
  /// Calls the function and sets `known` to its result. Returns as run.
  const char* (*run_known)(RunKnown* function, const KnownCall& call, bool& known);
  /// torch's number of a dtype of DLPack, or -1.
  std::int32_t (*dtype)(std::uint8_t code, std::uint8_t bits);
};

}  // namespace fovea::binding
