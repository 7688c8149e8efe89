// SPDX-License-Identifier: Apache-2.0
/// torch as a plan in Python needs it, found once.
#pragma once

#include <ATen/dlpack.h>

#include <vector>

#include "ref.hpp"
#include "torch/plans/python_table.hpp"

namespace fovea::python {

class Torch {
 public:
  static constexpr const char* kExchange = "dlpack_exchange_api";  // torch's own name for the capsule

  /// `parts` is an object whose attributes are named as below. Otherwise, or with another version of DLPack, a Python exception is set.
  bool find(PyObject* parts);

  /// Whether no mode, trace or transform wants to see the call.
  bool is_plain() const;
  bool is_grad_enabled() const { return is_true(is_grad_enabled_); }
  bool requires_grad(PyObject* tensor) const;
  /// Whether the object is one of torch's own two types.
  bool is_tensor(PyObject* object) const { return is_of(object, tensor_type_) || is_of(object, parameter_type_); }
  /// The tensor's memory as DLPack sees it, borrowed. False for a tensor that has none.
  bool view(PyObject* tensor, DLTensor& to) const;
  /// Whether the tensor's values are the negatives of its memory.
  bool is_negative(PyObject* tensor) const;
  /// Whether the tensor's storage holds all of its memory.
  bool is_memory(PyObject* tensor, const DLTensor& view) const;
  /// Counts these tensors as changed.
  bool mark_written(PyObject* list) const { return static_cast<bool>(Ref(call(increment_version_.get(), list))); }

  const binding::PlanTable& table() const { return *table_; }

 private:
  static PyObject* call(PyObject* function, PyObject* argument) { return PyObject_CallFunctionObjArgs(function, argument, nullptr); }
  static bool is_true(const Ref& function);
  static bool is_of(PyObject* object, const Ref& type) { return reinterpret_cast<PyObject*>(Py_TYPE(object)) == type.get(); }

  const binding::PlanTable* table_ = nullptr;
  const DLPackExchangeAPI* exchange_ = nullptr;
  Ref tensor_type_, parameter_type_;
  std::vector<Ref> modes_;  ///< functions whose truth is a mode
  Ref forward_ad_, current_level_, requires_grad_;
  Ref is_grad_enabled_, is_negative_, increment_version_, storage_, storage_offset_;
};

/// The one of this process.
Torch& torch();

}  // namespace fovea::python
