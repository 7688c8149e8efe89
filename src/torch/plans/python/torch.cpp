// SPDX-License-Identifier: Apache-2.0
#include "torch.hpp"

#include <cstdint>

namespace fovea::python {
namespace {

const DLPackExchangeAPI* exchange_of(PyObject* capsule) {
  const auto* api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, Torch::kExchange));
  if (api == nullptr) return nullptr;
  if (api->header.version.major == DLPACK_MAJOR_VERSION && api->dltensor_from_py_object_no_sync != nullptr) return api;
  PyErr_SetString(PyExc_ImportError, "torch has another version of DLPack");
  return nullptr;
}

bool read(PyObject* parts, const char* name, Ref& to) {
  to = attribute(parts, name);
  return static_cast<bool>(to);
}

bool read(PyObject* list, std::vector<Ref>& to) {
  const Py_ssize_t size = PyTuple_Size(list);
  for (Py_ssize_t at = 0; at < size; ++at) to.push_back(Ref::to(PyTuple_GetItem(list, at)));
  return size >= 0;
}

}  // namespace

bool Torch::find(PyObject* parts) {
  Ref exchange, table, modes;
  const bool all = read(parts, "exchange", exchange) && read(parts, "table", table) && read(parts, "modes", modes) &&
                   read(parts, "tensor_type", tensor_type_) && read(parts, "parameter_type", parameter_type_) &&
                   read(parts, "forward_ad", forward_ad_) && read(parts, "is_grad_enabled", is_grad_enabled_) &&
                   read(parts, "is_negative", is_negative_) && read(parts, "increment_version", increment_version_) &&
                   read(parts, "storage", storage_) && read(parts, "storage_offset", storage_offset_) && read(modes.get(), modes_);
  if (!all) return false;
  current_level_ = Ref(PyUnicode_InternFromString("_current_level"));
  requires_grad_ = Ref(PyUnicode_InternFromString("requires_grad"));
  table_ = reinterpret_cast<const binding::PlanTable*>(static_cast<std::intptr_t>(PyLong_AsLongLong(table.get())));
  if (PyErr_Occurred() != nullptr) return false;
  if (table_->bytes != sizeof(binding::PlanTable)) PyErr_SetString(PyExc_ImportError, "the extension has another version");
  exchange_ = exchange_of(exchange.get());
  return exchange_ != nullptr && PyErr_Occurred() == nullptr;
}

bool Torch::is_true(const Ref& function) {
  const Ref answer(PyObject_CallNoArgs(function.get()));
  const bool yes = !answer || PyObject_IsTrue(answer.get()) != 0;
  PyErr_Clear();
  return yes;
}

bool Torch::is_plain() const {
  for (const Ref& mode : modes_) {
    if (is_true(mode)) return false;
  }
  const Ref level(PyObject_GetAttr(forward_ad_.get(), current_level_.get()));
  const bool no_level = level && PyLong_AsLong(level.get()) < 0;
  PyErr_Clear();
  return no_level;
}

bool Torch::requires_grad(PyObject* tensor) const {
  const Ref answer(PyObject_GetAttr(tensor, requires_grad_.get()));
  PyErr_Clear();
  return answer.get() != Py_False;
}

bool Torch::is_negative(PyObject* tensor) const {
  const Ref answer(call(is_negative_.get(), tensor));
  PyErr_Clear();
  return answer.get() != Py_False;
}

bool Torch::view(PyObject* tensor, DLTensor& to) const {
  if (exchange_->dltensor_from_py_object_no_sync(tensor, &to) == 0) return to.byte_offset == 0;
  PyErr_Clear();
  return false;
}

bool Torch::is_memory(PyObject* tensor, const DLTensor& view) const {
  const Ref storage(call(storage_.get(), tensor)), offset(call(storage_offset_.get(), tensor));
  std::int64_t reach = 1;
  bool is_empty = false;
  for (std::int32_t axis = 0; axis < view.ndim; ++axis) {
    is_empty = is_empty || view.shape[axis] == 0;
    reach += (view.shape[axis] - 1) * view.strides[axis];
  }
  const Py_ssize_t bytes = storage ? PyObject_Size(storage.get()) : -1;
  if (bytes >= 0 && offset) reach += PyLong_AsLongLong(offset.get());
  const bool known = PyErr_Occurred() == nullptr;
  PyErr_Clear();
  return known && (is_empty || reach * (std::int64_t{view.dtype.bits} * view.dtype.lanes / 8) <= bytes);
}

Torch& torch() {
  static Torch& only = *new Torch;  // no destructor: the interpreter ends first
  return only;
}

}  // namespace fovea::python
