// SPDX-License-Identifier: Apache-2.0
/// The short path from Python: a call that says what an earlier one said runs that one's plan, without torch's dispatcher.
/// This is what the extension gives to the Python module (src/torch/python), as plain C, because each is a library of its own.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fovea::binding {

struct ShortPath {
  std::size_t bytes = sizeof(ShortPath);  ///< differs where the libraries are of different versions
  /// The operator call that has just returned in this thread, to be run again; null if it cannot be. The caller releases it.
  void* (*take_call)();
  void (*release)(void* call);
  /// Runs it over other memory: the address of each tensor of the schema in order, null where there is none. Returns null, or what went
  /// wrong, as the operator says it: a text that lives until the thread's next call.
  const char* (*run)(const void* call, void* const* addresses);
  /// How many threads a call would run on now; a plan is of so many.
  std::int64_t (*threads)();
};

}  // namespace fovea::binding
