// SPDX-License-Identifier: Apache-2.0
/// A plan in Python: its tensors, and the run over others like them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "torch.hpp"

namespace fovea::python {

/// A tensor of the operator's schema.
struct Slot {
  Ref name;
  Ref planned;  ///< the tensor of a run that gets no other; absent for a new output, and where each run gives one
  Ref make;     ///< allocates a new output; takes the tensor of slot `like`, if there is one
  std::int64_t like = -1;
  std::vector<std::int64_t> shape, strides;  ///< required of any tensor here
  DLDataType dtype{};
  DLDevice device{};
  std::uintptr_t alignment = 1;
  bool is_present = false;
  bool is_written = false;
  bool is_real = false;  ///< may require a gradient

  /// Reads (name, description, planned, written, make, like). False with an exception set.
  bool read(PyObject* from);
  /// Whether the plan has neither a tensor to fall back on nor a way to make one.
  bool is_needed() const { return is_present && !planned && !make; }
  /// Whether a tensor serves the plan as it is. Sets its address.
  bool accepts(PyObject* tensor, bool grad_enabled, void*& address);
};

/// The state of a Python object. Python's lock guards it; runs leave it alone.
class Plan {
 public:
  static constexpr std::size_t kMostTensors = 32;

  explicit Plan(void* held) : held_(held) {}
  ~Plan() { torch().table().release(held_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// `slots` as Slot::read takes them; `order`, the slots of positional arguments; `result`, a slot, a tuple of slots or None.
  bool describe(PyObject* slots, PyObject* order, PyObject* result);

  /// Arguments as Python's fast calls have them.
  struct Given {
    PyObject* const* values;
    Py_ssize_t count;
    PyObject* names;
  };
  enum class Outcome { done, not_here, failed };
  /// `not_here`: an argument that does not fit, or a mode. `failed`: a Python exception is set, or `wrong` holds an error of the plan.
  Outcome run(const Given& given, Ref& result, const char*& wrong);
  /// Fills the schedule from the lengths of a run. `schedule` is the memory for it, null on a CPU.
  Outcome prepare(const Given& given, Ref schedule, const char*& wrong);

  const Ref& schedule() const { return schedule_; }

 private:
  struct Call {
    std::array<PyObject*, kMostTensors> tensors{};
    std::array<void*, kMostTensors> addresses{};
    std::array<Ref, 4> made;
    bool prepared = false;
  };

  Outcome bind(const Given& given, Call& call);
  bool take_named(const Given& given, Py_ssize_t index, Call& call) const;
  bool make_outputs(Call& call) const;
  bool mark_written(const Call& call) const;
  Ref result_of(const Call& call) const;

  void* held_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> order_, result_;
  bool returns_tuple_ = false, is_prepared_ = false;
  Ref schedule_;
};

}  // namespace fovea::python
