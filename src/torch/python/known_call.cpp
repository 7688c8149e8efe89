// SPDX-License-Identifier: Apache-2.0
#include "known_call.hpp"

#include <array>

namespace fovea::python {
namespace {

/// Other threads of Python run meanwhile.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

bool refuse(const char* what) {
  if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_ValueError, what);
  return false;
}

/// A number below `end`.
bool read_index(PyObject* from, std::size_t end, std::size_t& to) {
  const long long number = PyLong_AsLongLong(from);
  to = static_cast<std::size_t>(number);
  return number >= 0 && to < end ? true : refuse("index: out of range");
}

}  // namespace

bool KnownCall::describe(std::size_t count, PyObject* tensors, PyObject* fresh, PyObject* result, PyObject* written) {
  if (!read_fresh(fresh, count) || !read_sources(tensors, count, tensors_)) return false;
  returns_tuple_ = PyTuple_Check(result);
  if (returns_tuple_ ? !read_sources(result, count, results_) : !read_source(result, count, results_.emplace_back())) return false;
  const Py_ssize_t size = PyTuple_Size(written);
  for (Py_ssize_t at = 0; at < size; ++at) {
    if (!read_index(PyTuple_GetItem(written, at), count, written_.emplace_back())) return false;
  }
  return tensors_.size() <= Call::kMostTensors ? size >= 0 : refuse("tensors: too many");
}

/// None, the number of a tensor of the call, -1 and so on for fresh ones, or a tensor that stays as it is.
bool KnownCall::read_source(PyObject* from, std::size_t count, Source& to) {
  if (from == Py_None) return true;
  if (torch().is_tensor(from)) {
    DLTensor view;
    if (!torch().view(from, view)) return refuse("constant: no plain tensor");
    constants_.push_back(Ref::to(from));
    to = {.kind = Source::Kind::constant, .index = constants_.size() - 1, .address = view.data};
    return true;
  }
  const long long number = PyLong_AsLongLong(from);
  if (PyErr_Occurred() != nullptr) return false;
  const bool is_fresh = number < 0;
  to = {.kind = is_fresh ? Source::Kind::fresh : Source::Kind::argument,
        .index = static_cast<std::size_t>(is_fresh ? -1 - number : number)};
  return to.index < (is_fresh ? fresh_.size() : count) ? true : refuse("tensor: out of range");
}

bool KnownCall::read_sources(PyObject* from, std::size_t count, std::vector<Source>& to) {
  const Py_ssize_t size = PyTuple_Size(from);
  for (Py_ssize_t at = 0; at < size; ++at) {
    if (!read_source(PyTuple_GetItem(from, at), count, to.emplace_back())) return false;
  }
  return size >= 0;
}

/// (function, number of the tensor that it is like or None, arguments, options) of each.
bool KnownCall::read_fresh(PyObject* from, std::size_t count) {
  const Py_ssize_t size = PyTuple_Size(from);
  for (Py_ssize_t at = 0; at < size; ++at) {
    PyObject *function = nullptr, *like = nullptr, *arguments = nullptr, *options = nullptr;
    if (PyArg_ParseTuple(PyTuple_GetItem(from, at), "OOOO", &function, &like, &arguments, &options) == 0) return false;
    Fresh& entry = fresh_.emplace_back(Ref::to(function), Ref::to(arguments), Ref::to(options));
    entry.is_like = like != Py_None;
    if (entry.is_like && !read_index(like, count, entry.like)) return false;
  }
  return fresh_.size() <= kMostFresh ? size >= 0 : refuse("fresh: too many");
}

bool KnownCall::fits_schedule_of(const Call& call) const {
  if (call.schedule() == nullptr) return true;
  const Ref token = attribute(call.schedule(), "_token"), captured = attribute(call.schedule(), "_captured");
  PyErr_Clear();
  return token.get() == token_.get() && (captured.get() == Py_True) == (call.is_on_gpu() && torch().is_capturing());
}

bool KnownCall::make_fresh(const Call& call, std::span<Ref> made, std::span<void*> addresses) const {
  for (std::size_t at = 0; at < fresh_.size(); ++at) {
    const Fresh& entry = fresh_[at];
    const Ref like = entry.is_like ? Ref(PyTuple_Pack(1, call.tensors()[entry.like].object)) : entry.arguments;
    if (!like) return false;
    made[at] = Ref(PyObject_Call(entry.function.get(), like.get(), entry.options.get()));
    DLTensor view;
    if (!made[at]) return false;
    if (!torch().view(made[at].get(), view)) return refuse("fresh: no plain tensor");
    addresses[at] = view.data;
  }
  return true;
}

bool KnownCall::mark_written(const Call& call) const {
  if (written_.empty()) return true;
  const Ref list(PyList_New(0));
  for (const std::size_t index : written_) {
    if (!list || PyList_Append(list.get(), call.tensors()[index].object) != 0) return false;
  }
  return torch().mark_written(list.get());
}

PyObject* KnownCall::tensor_of(const Source& source, const Call& call, std::span<const Ref> fresh) {
  switch (source.kind) {
    case Source::Kind::argument: return call.tensors()[source.index].object;
    case Source::Kind::fresh: return fresh[source.index].get();
    default: return Py_None;
  }
}

PyObject* KnownCall::run(const Call& call) const {
  std::array<Ref, kMostFresh> fresh;
  std::array<void*, kMostFresh> made{};
  std::array<void*, Call::kMostTensors> addresses{};
  if (!make_fresh(call, fresh, made)) return nullptr;
  for (std::size_t at = 0; at < tensors_.size(); ++at) {
    const Source& source = tensors_[at];
    if (source.kind == Source::Kind::argument) addresses[at] = call.tensors()[source.index].address;
    if (source.kind == Source::Kind::fresh) addresses[at] = made[source.index];
    if (source.kind == Source::Kind::constant) addresses[at] = source.address;
  }
  const char* wrong = nullptr;
  {
    const Unlocked unlocked;
    wrong = torch().extension().run(operator_call_, addresses.data());
  }
  if (wrong != nullptr) PyErr_SetString(PyExc_RuntimeError, wrong);
  if (wrong != nullptr || !mark_written(call)) return nullptr;
  if (!returns_tuple_) return Ref::to(tensor_of(results_.front(), call, fresh)).release();
  Ref result(PyTuple_New(static_cast<Py_ssize_t>(results_.size())));
  for (std::size_t at = 0; result && at < results_.size(); ++at) {
    PyTuple_SetItem(result.get(), static_cast<Py_ssize_t>(at), Ref::to(tensor_of(results_[at], call, fresh)).release());
  }
  return result.release();
}

}  // namespace fovea::python
