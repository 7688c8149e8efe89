// SPDX-License-Identifier: Apache-2.0
#include "known.hpp"

#include <bit>
#include <cctype>

#include "torch/convert/alignment.hpp"

namespace fovea::python {
namespace {

/// torch's type and index of a device, as CallKey has them. False for a device that the library does not have.
bool add_device(const DLDevice& device, std::vector<std::int64_t>& key) {
  const bool on_gpu = device.device_type == kDLCUDA || device.device_type == kDLROCM;
  if (!on_gpu && device.device_type != kDLCPU) return false;
  key.push_back(on_gpu ? 1 : 0);
  key.push_back(on_gpu ? device.device_id : -1);
  return true;
}

}  // namespace

bool Known::add_tensor(PyObject* tensor, bool grad_enabled, Call& call) {
  DLTensor view;
  if (call.count == kMostTensors || !torch().is_tensor(tensor) || !torch().view(tensor, view)) return false;
  const std::int32_t dtype = view.dtype.lanes == 1 ? torch().table().dtype(view.dtype.code, view.dtype.bits) : -1;
  if (dtype < 0) return false;
  call.key.push_back(dtype);
  if (!add_device(view.device, call.key)) return false;
  call.key.push_back(binding::alignment_of_address(view.data));
  call.key.push_back(view.ndim);
  call.key.insert(call.key.end(), view.shape, view.shape + view.ndim);
  for (std::int32_t axis = 0; axis < view.ndim; ++axis) call.key.push_back(view.shape[axis] == 1 ? 0 : view.strides[axis]);
  const bool is_real = view.dtype.code != kDLInt && view.dtype.code != kDLUInt;
  if (is_real && (torch().is_negative(tensor) || (grad_enabled && torch().requires_grad(tensor)))) return false;
  if (!torch().is_memory(tensor, view)) return false;
  call.addresses[call.count++] = view.data;
  return true;
}

bool Known::add_schedule(PyObject* tensor, Call& call) {
  DLTensor view;
  if (!torch().view(tensor, view) || view.ndim != 1 || view.strides[0] != 1) return false;
  if (view.dtype.code != kDLUInt || view.dtype.bits != 8) return false;
  call.schedule = view.data;
  call.schedule_bytes = static_cast<std::size_t>(view.shape[0]);
  return PyList_Append(call.written.get(), tensor) == 0;
}

bool Known::add_text(PyObject* text, Call& call) {
  Py_ssize_t size = 0;
  const char* const characters = PyUnicode_Check(text) != 0 ? PyUnicode_AsUTF8AndSize(text, &size) : nullptr;
  if (characters == nullptr) return false;
  call.key.push_back(size);
  call.key.insert(call.key.end(), characters, characters + size);
  return true;
}

bool Known::add(char kind, PyObject* value, bool grad_enabled, Call& call) {
  const bool is_none = value == Py_None;
  switch (kind) {
    case 'p': return add('t', value, grad_enabled, call) && (is_none || add_schedule(value, call));
    case 't':
    case 'w':
      call.key.push_back(is_none ? 0 : 1);
      if (is_none) {
        if (call.count == kMostTensors) return false;
        call.addresses[call.count++] = nullptr;
        return true;
      }
      [[fallthrough]];
    case 'T':
    case 'W':
      if (!add_tensor(value, grad_enabled, call)) return false;
      return std::tolower(kind) == 't' || PyList_Append(call.written.get(), value) == 0;
    case 'j':
      call.key.push_back(is_none ? 0 : 1);
      if (is_none) return true;
      [[fallthrough]];
    case 'i':
      if (PyLong_CheckExact(value) == 0) return false;
      call.key.push_back(PyLong_AsLongLong(value));
      return PyErr_Occurred() == nullptr;
    case 'f':
      if (PyFloat_CheckExact(value) == 0 && PyLong_CheckExact(value) == 0) return false;
      call.key.push_back(std::bit_cast<std::int64_t>(PyFloat_AsDouble(value)));
      return PyErr_Occurred() == nullptr;
    case 'b': call.key.push_back(value == Py_True ? 1 : 0); return value == Py_True || value == Py_False;
    case 's': return add_text(value, call);
    default: return false;
  }
}

Known::Outcome Known::run(PyObject* args, const char*& wrong) {
  const Torch& in = torch();
  if (!in.is_plain()) return Outcome::unknown;
  const Py_ssize_t given = PyTuple_Size(args), all = static_cast<Py_ssize_t>(kinds_.size());
  const Py_ssize_t least = all - PyTuple_Size(defaults_.get());
  if (given < least || given > all) return Outcome::unknown;
  const bool grad_enabled = in.is_grad_enabled();
  Call call;
  call.written = Ref(PyList_New(0));
  if (!call.written) return Outcome::failed;
  for (Py_ssize_t at = 0; at < all; ++at) {
    PyObject* const value = at < given ? PyTuple_GetItem(args, at) : PyTuple_GetItem(defaults_.get(), at - least);
    if (!add(kinds_[static_cast<std::size_t>(at)], value, grad_enabled, call)) {
      PyErr_Clear();
      return Outcome::unknown;
    }
  }
  bool known = false;
  {
    const Unlocked unlocked;
    wrong = in.table().run_known(function_, {call.key.data(), call.key.size(), call.addresses.data(), call.schedule, call.schedule_bytes},
                                 known);
  }
  if (wrong != nullptr) return Outcome::failed;
  if (!known) return Outcome::unknown;
  return in.mark_written(call.written.get()) ? Outcome::done : Outcome::failed;
}

}  // namespace fovea::python
