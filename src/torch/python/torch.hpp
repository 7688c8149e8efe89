// SPDX-License-Identifier: Apache-2.0
/// What the short path asks of torch, found once.
#pragma once

#include <ATen/dlpack.h>

#include <vector>

#include "ref.hpp"
#include "torch/short_path.hpp"

namespace fovea::python {

class Torch {
 public:
  static constexpr const char* kExchange = "dlpack_exchange_api";  // torch's own name for the capsule

  /// `parts` is an object whose attributes are named as below. Without them, or with another version of DLPack, a Python exception is set.
  bool find(PyObject* parts);

  /// Whether calls mean what they say: no mode, transform or profiler wants to see them.
  bool is_plain() const;
  bool is_grad_enabled() const { return is_true(is_grad_enabled_); }
  /// Of a tensor: whether it wants a gradient, or its values are the negatives of its memory.
  bool requires_grad(PyObject* tensor) const;
  bool is_negative(PyObject* tensor) const;
  /// Of torch's own two types.
  bool is_tensor(PyObject* object) const { return is_of(object, tensor_type_) || is_of(object, parameter_type_); }
  bool is_dtype(PyObject* object) const { return is_of(object, dtype_type_); }
  bool is_schedule(PyObject* object) const;
  /// Without memory of its own: false if torch cannot say it.
  bool view(PyObject* tensor, DLTensor& to) const;
  /// Whether the storage of such a tensor holds all of its elements.
  bool fits_storage(PyObject* tensor, const DLTensor& view) const;
  bool is_capturing() const { return is_true(is_capturing_); }
  /// Marks these tensors as changed.
  bool mark_written(PyObject* list) const { return static_cast<bool>(Ref(call(increment_version_.get(), list))); }

  const binding::ShortPath& extension() const { return *extension_; }

 private:
  static PyObject* call(PyObject* function, PyObject* argument) { return PyObject_CallFunctionObjArgs(function, argument, nullptr); }
  static bool is_true(const Ref& function);
  static bool is_of(PyObject* object, const Ref& type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type.get(); }

  const binding::ShortPath* extension_ = nullptr;
  const DLPackExchangeAPI* exchange_ = nullptr;
  Ref tensor_type_, parameter_type_, dtype_type_, schedule_type_;
  std::vector<Ref> modes_;  ///< functions: something other than 0 or False means a mode
  Ref forward_ad_, current_level_, requires_grad_;
  Ref is_grad_enabled_, is_negative_, is_capturing_, increment_version_, storage_, storage_offset_;
};

/// Of this process.
Torch& torch();

}  // namespace fovea::python
