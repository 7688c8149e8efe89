// SPDX-License-Identifier: Apache-2.0
/// A call of a public function: what it says, and the memory of its tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "torch.hpp"

namespace fovea::python {

/// What a call says lies in words: of each tensor its dtype, device, shape, strides and alignment, and every other argument as it is.
class Call {
 public:
  struct Tensor {
    PyObject* object;  ///< the caller's
    void* address;
  };
  static constexpr std::size_t kMostTensors = 24, kMostWords = 512;

  /// False where the call is not for the short path: an argument is of another type, a tensor is no plain one or wants a gradient.
  /// `args` is a tuple, `kwargs` a dict; both outlive this.
  bool take(PyObject* args, PyObject* kwargs);

  std::span<const std::int64_t> words() const { return {words_.data(), size_}; }
  /// In the order in which they were given. A schedule that holds memory is one, too.
  std::span<const Tensor> tensors() const { return {tensors_.data(), count_}; }
  PyObject* schedule() const { return schedule_; }
  bool is_on_gpu() const { return is_on_gpu_; }

 private:
  bool add(std::int64_t word);
  bool take_value(PyObject* value);
  bool take_integer(PyObject* value);
  bool take_text(PyObject* value);
  bool take_tuple(PyObject* value);
  bool take_tensor(PyObject* value);
  bool take_schedule(PyObject* value);

  std::array<std::int64_t, kMostWords> words_;
  std::array<Tensor, kMostTensors> tensors_;
  std::size_t size_ = 0, count_ = 0;
  PyObject* schedule_ = nullptr;
  Ref schedule_memory_;  ///< which another thread may reset meanwhile
  bool grad_enabled_ = false, is_on_gpu_ = false;
};

}  // namespace fovea::python
