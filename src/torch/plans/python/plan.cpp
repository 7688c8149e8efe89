// SPDX-License-Identifier: Apache-2.0
#include "plan.hpp"

#include <algorithm>

#include "torch/convert/alignment.hpp"

namespace fovea::python {
namespace {

bool refuse(const char* text) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, text);
  return false;
}

bool is_real(const DLDataType& type) { return type.code != kDLInt && type.code != kDLUInt && type.code != kDLBool; }

bool read_slots(PyObject* from, std::size_t end, std::vector<std::size_t>& to) {
  const Py_ssize_t size = PyTuple_Size(from);
  for (Py_ssize_t at = 0; at < size; ++at) {
    const Py_ssize_t slot = PyLong_AsSsize_t(PyTuple_GetItem(from, at));
    if (slot < 0 || static_cast<std::size_t>(slot) >= end) return refuse("slot: out of range");
    to.push_back(static_cast<std::size_t>(slot));
  }
  return size >= 0;
}

bool is_name(PyObject* name, const Ref& other) { return name == other.get() || PyUnicode_Compare(name, other.get()) == 0; }

}  // namespace

bool Slot::read(PyObject* from) {
  PyObject *name_given = nullptr, *like_tensor = nullptr, *planned_given = nullptr, *make_given = nullptr;
  int written = 0;
  long long like_given = -1;
  if (PyArg_ParseTuple(from, "OOOpOL", &name_given, &like_tensor, &planned_given, &written, &make_given, &like_given) == 0) return false;
  name = Ref::to(name_given);
  is_written = written != 0;
  like = like_given;
  if (like_tensor == Py_None) return true;
  if (planned_given != Py_None) planned = Ref::to(planned_given);
  if (make_given != Py_None) make = Ref::to(make_given);
  DLTensor view;
  if (!torch().view(like_tensor, view)) {
    PyErr_Format(PyExc_ValueError, "%U: got a tensor without memory of its own, want a plain one in a plan", name.get());
    return false;
  }
  is_present = true;
  shape.assign(view.shape, view.shape + view.ndim);
  strides.assign(view.strides, view.strides + view.ndim);
  dtype = view.dtype;
  device = view.device;
  is_real = python::is_real(dtype);
  alignment = static_cast<std::uintptr_t>(binding::alignment_of_address(view.data));
  return true;
}

bool Slot::accepts(PyObject* tensor, bool grad_enabled, void*& address) {
  DLTensor view;
  if (!torch().is_tensor(tensor) || !torch().view(tensor, view)) return false;
  if (view.dtype.code != dtype.code || view.dtype.bits != dtype.bits || view.dtype.lanes != dtype.lanes) return false;
  if (view.device.device_type != device.device_type || view.device.device_id != device.device_id) return false;
  if (static_cast<std::size_t>(view.ndim) != shape.size()) return false;
  bool has_elements = true;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) {
    if (view.shape[axis] != shape[axis]) return false;
    has_elements = has_elements && shape[axis] != 0;
  }
  for (std::size_t axis = 0; has_elements && axis < shape.size(); ++axis) {
    if (shape[axis] > 1 && view.strides[axis] != strides[axis]) return false;
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % alignment != 0) return false;
  if (is_real && (torch().is_negative(tensor) || (grad_enabled && torch().requires_grad(tensor)))) return false;
  if (!torch().is_memory(tensor, view)) return false;
  address = view.data;
  return true;
}

bool Plan::describe(PyObject* slots, PyObject* order, PyObject* result) {
  const Py_ssize_t size = PyTuple_Size(slots);
  if (size < 0 || static_cast<std::size_t>(size) > kMostTensors) return refuse("slots: too many");
  for (Py_ssize_t at = 0; at < size; ++at) {
    if (!slots_.emplace_back().read(PyTuple_GetItem(slots, at))) return false;
  }
  returns_tuple_ = PyTuple_Check(result) != 0;
  const Ref results = result == Py_None ? Ref(PyTuple_New(0)) : returns_tuple_ ? Ref::to(result) : Ref(PyTuple_Pack(1, result));
  const auto news = std::ranges::count_if(slots_, [](const Slot& slot) { return static_cast<bool>(slot.make); });
  if (news > static_cast<std::ptrdiff_t>(Call{}.made.size())) return refuse("slots: too many new outputs");
  return read_slots(order, slots_.size(), order_) && results && read_slots(results.get(), slots_.size(), result_);
}

bool Plan::take_named(const Given& given, Py_ssize_t index, Call& call) const {
  PyObject *name = PyTuple_GetItem(given.names, index), *value = given.values[given.count + index];
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    if (!is_name(name, slots_[at].name)) continue;
    if (std::find(order_.begin(), order_.begin() + given.count, at) != order_.begin() + given.count) return false;  // given twice
    if (value != Py_None) call.tensors[at] = value;
    return true;
  }
  if (PyUnicode_CompareWithASCIIString(name, "prepared") != 0) return false;
  call.prepared = value == Py_True;
  return value == Py_True || value == Py_False;
}

Plan::Outcome Plan::bind(const Given& given, Call& call) {
  const Torch& in = torch();
  if (!in.is_plain() || given.count > static_cast<Py_ssize_t>(order_.size())) return Outcome::not_here;
  for (std::size_t at = 0; at < slots_.size(); ++at) call.tensors[at] = slots_[at].planned.get();
  for (Py_ssize_t at = 0; at < given.count; ++at) {
    if (given.values[at] != Py_None) call.tensors[order_[static_cast<std::size_t>(at)]] = given.values[at];
  }
  const Py_ssize_t named = given.names == nullptr ? 0 : PyTuple_Size(given.names);
  for (Py_ssize_t at = 0; at < named; ++at) {
    if (!take_named(given, at, call)) return Outcome::not_here;
  }
  if (call.prepared && !is_prepared_) {
    PyErr_SetString(PyExc_ValueError, "prepared: got True, want False before prepare()");
    return Outcome::failed;
  }
  const bool grad_enabled = in.is_grad_enabled();
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    if (call.tensors[at] == nullptr && slots_[at].is_needed()) return Outcome::not_here;
    if (call.tensors[at] == nullptr) continue;
    if (!slots_[at].is_present || !slots_[at].accepts(call.tensors[at], grad_enabled, call.addresses[at])) return Outcome::not_here;
  }
  return make_outputs(call) ? Outcome::done : Outcome::failed;
}

bool Plan::make_outputs(Call& call) const {
  auto made = call.made.begin();
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    const Slot& slot = slots_[at];
    if (call.tensors[at] != nullptr || !slot.make) continue;
    PyObject* const like = slot.like < 0 ? nullptr : call.tensors[static_cast<std::size_t>(slot.like)];
    Ref& tensor = *made++;
    tensor = Ref(PyObject_CallFunctionObjArgs(slot.make.get(), like, nullptr));
    DLTensor view;
    if (!tensor) return false;
    if (!torch().view(tensor.get(), view)) return refuse("output: no plain memory");
    call.tensors[at] = tensor.get();
    call.addresses[at] = view.data;
  }
  return true;
}

bool Plan::mark_written(const Call& call) const {
  const Ref list(PyList_New(0));
  for (std::size_t at = 0; at < slots_.size(); ++at) {
    if (!slots_[at].is_written || call.tensors[at] == nullptr) continue;
    if (!list || PyList_Append(list.get(), call.tensors[at]) != 0) return false;
  }
  return torch().mark_written(list.get());
}

Ref Plan::result_of(const Call& call) const {
  if (result_.empty()) return Ref::to(Py_None);
  if (!returns_tuple_) return Ref::to(call.tensors[result_.front()]);
  Ref all(PyTuple_New(static_cast<Py_ssize_t>(result_.size())));
  for (std::size_t at = 0; all && at < result_.size(); ++at) {
    PyTuple_SetItem(all.get(), static_cast<Py_ssize_t>(at), Ref::to(call.tensors[result_[at]]).release());
  }
  return all;
}

Plan::Outcome Plan::run(const Given& given, Ref& result, const char*& wrong) {
  Call call;
  if (const Outcome bound = bind(given, call); bound != Outcome::done) return bound;
  DLTensor schedule{};
  if (call.prepared && schedule_ && !torch().view(schedule_.get(), schedule)) return Outcome::not_here;
  {
    const Unlocked unlocked;
    wrong = torch().table().run(held_, call.addresses.data(), schedule.data);
  }
  if (wrong != nullptr || !mark_written(call)) return Outcome::failed;
  result = result_of(call);
  return result ? Outcome::done : Outcome::failed;
}

Plan::Outcome Plan::prepare(const Given& given, Ref schedule, const char*& wrong) {
  Call call;
  if (const Outcome bound = bind(given, call); bound != Outcome::done) return bound;
  if (call.prepared) return Outcome::not_here;
  DLTensor view{};
  if (schedule && !torch().view(schedule.get(), view)) return Outcome::not_here;
  if (schedule) {
    const Unlocked unlocked;
    wrong = torch().table().prepare(held_, call.addresses.data(), view.data);
  }
  if (wrong != nullptr) return Outcome::failed;
  schedule_ = std::move(schedule);
  is_prepared_ = true;
  return Outcome::done;
}

}  // namespace fovea::python
