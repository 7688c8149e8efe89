// SPDX-License-Identifier: Apache-2.0
/// Repeated calls of an operator from Python: the plan of an earlier call runs, and torch's dispatcher is left out.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "torch.hpp"

namespace fovea::python {

/// An operator's arguments, as its schema has them.
class Known {
 public:
  static constexpr std::size_t kMostTensors = 32;

  /// `function` runs a known plan. `kinds` has a letter for each argument: T a tensor, t an optional one, i and j likewise an int, f a
  /// float, b a bool, s a str. W and w are tensors that are written, p is the
  /// schedule. Any other letter is for the operator. `defaults` ends the argument lists of short calls.
  Known(binding::RunKnown* function, std::string kinds, Ref defaults)
      : function_(function), kinds_(std::move(kinds)), defaults_(std::move(defaults)) {}

  enum class Outcome { done, unknown, failed };
  /// `args` is a tuple. `unknown`: nothing was run. `failed`: a Python exception is set, or `wrong` holds an error of the plan.
  Outcome run(PyObject* args, const char*& wrong);

 private:
  struct Call {
    std::array<void*, kMostTensors> addresses{};
    std::size_t count = 0, schedule_bytes = 0;
    void* schedule = nullptr;
    std::vector<std::int64_t> key;
    Ref written;
  };

  /// Both add to the key, and are false where the operator itself must look at the argument.
  bool add(char kind, PyObject* value, bool grad_enabled, Call& call);
  bool add_tensor(PyObject* tensor, bool grad_enabled, Call& call);
  static bool add_schedule(PyObject* tensor, Call& call);
  static bool add_text(PyObject* text, Call& call);

  binding::RunKnown* function_;
  std::string kinds_;
  Ref defaults_;
};

}  // namespace fovea::python
