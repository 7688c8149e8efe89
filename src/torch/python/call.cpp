// SPDX-License-Identifier: Apache-2.0
#include "call.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "torch/call_words.hpp"

namespace fovea::python {
namespace {

/// What kind of value follows, as the first word of each.
enum Kind : std::int64_t { kNone, kFlag, kInteger, kReal, kText, kTuple, kType, kTensor, kSchedule };

bool is_integer(const DLDataType& type) { return type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool; }

bool is_known(const DLDevice& device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDA || device.device_type == kDLROCM;
}

std::int64_t address_of(PyObject* object) { return static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(object)); }

}  // namespace

bool Call::add(std::int64_t word) {
  if (size_ == kMostWords) return false;
  words_[size_++] = word;
  return true;
}

bool Call::take(PyObject* args, PyObject* kwargs) {
  const Torch& in = torch();
  grad_enabled_ = in.is_grad_enabled();
  const Py_ssize_t positional = PyTuple_Size(args);
  if (!add(in.extension().threads()) || !add(positional)) return false;
  for (Py_ssize_t at = 0; at < positional; ++at) {
    if (!take_value(PyTuple_GetItem(args, at))) return false;
  }
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(kwargs, &position, &name, &value) != 0;) {
    if (!take_text(name) || !take_value(value)) return false;
  }
  return true;
}

bool Call::take_value(PyObject* value) {
  const Torch& in = torch();
  PyTypeObject* const type = Py_TYPE(value);
  if (in.is_tensor(value)) return take_tensor(value);
  if (value == Py_None) return add(kNone);
  if (type == &PyBool_Type) return add(kFlag) && add(value == Py_True ? 1 : 0);
  if (type == &PyLong_Type) return take_integer(value);
  if (type == &PyFloat_Type) return add(kReal) && add(std::bit_cast<std::int64_t>(PyFloat_AsDouble(value)));
  if (type == &PyUnicode_Type) return take_text(value);
  if (type == &PyTuple_Type) return take_tuple(value);
  if (in.is_dtype(value)) return add(kType) && add(address_of(value));
  return in.is_schedule(value) && take_schedule(value);
}

bool Call::take_integer(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  return overflow == 0 && add(kInteger) && add(number);
}

bool Call::take_text(PyObject* value) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (text == nullptr) PyErr_Clear();
  if (text == nullptr || !add(kText) || !add(size)) return false;
  for (Py_ssize_t at = 0; at < size; at += Py_ssize_t{sizeof(std::int64_t)}) {
    std::int64_t word = 0;
    std::memcpy(&word, text + at, static_cast<std::size_t>(std::min(size - at, Py_ssize_t{sizeof word})));
    if (!add(word)) return false;
  }
  return true;
}

bool Call::take_tuple(PyObject* value) {
  const Py_ssize_t size = PyTuple_Size(value);
  if (!add(kTuple) || !add(size)) return false;
  for (Py_ssize_t at = 0; at < size; ++at) {
    PyObject* const entry = PyTuple_GetItem(value, at);
    if (torch().is_tensor(entry) || torch().is_schedule(entry) || !take_value(entry)) return false;
  }
  return true;
}

bool Call::take_tensor(PyObject* value) {
  const Torch& in = torch();
  DLTensor tensor;
  if (count_ == kMostTensors || !in.view(value, tensor)) return false;
  const DLDataType& type = tensor.dtype;
  if (!is_known(tensor.device) || type.code == kDLComplex || tensor.byte_offset != 0) return false;
  if (grad_enabled_ && !is_integer(type) && in.requires_grad(value)) return false;
  if (in.is_negative(value) || !in.fits_storage(value, tensor)) return false;
  const auto rank = static_cast<std::size_t>(tensor.ndim);
  if (size_ + 4 + 2 * rank > kMostWords) return false;
  add(kTensor);
  add(std::int64_t{type.code} << 24 | std::int64_t{type.bits} << 16 | std::int64_t{type.lanes});
  add(std::int64_t{tensor.device.device_type} << 32 | std::int64_t{tensor.device.device_id});
  add(static_cast<std::int64_t>(rank) << 8 | binding::alignment_of_address(tensor.data));
  for (std::size_t at = 0; at < rank; ++at) add(tensor.shape[at]);
  for (std::size_t at = 0; at < rank; ++at) add(tensor.strides[at]);
  tensors_[count_++] = {value, tensor.data};
  is_on_gpu_ = is_on_gpu_ || tensor.device.device_type != kDLCPU;
  return true;
}

bool Call::take_schedule(PyObject* value) {
  schedule_ = value;
  schedule_memory_ = attribute(value, "_memory");
  PyErr_Clear();
  if (!schedule_memory_ || !add(kSchedule)) return false;
  if (schedule_memory_.get() == Py_None) return add(kNone);  // no call is kept like this: the first one computes a schedule
  return torch().is_tensor(schedule_memory_.get()) && take_tensor(schedule_memory_.get());
}

}  // namespace fovea::python
