// SPDX-License-Identifier: Apache-2.0
/// The module fovea._short_path: calls of public functions that have been made before, run without torch's dispatcher.
/// fovea/_repeat.py says what it is for and who learns the calls.
#include <algorithm>
#include <exception>
#include <new>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "known_call.hpp"
#include "torch/call_words.hpp"

namespace fovea::python {
namespace {

struct WordsHash {
  using is_transparent = void;
  std::size_t operator()(std::span<const std::int64_t> words) const noexcept { return binding::hash_of_words(words); }
};

struct SameWords {
  using is_transparent = void;
  bool operator()(std::span<const std::int64_t> a, std::span<const std::int64_t> b) const { return std::ranges::equal(a, b); }
};

/// Calls of one function, null where one must take the function itself. Python's lock guards them; a call that runs without it is held by
/// whoever runs it.
struct Calls {
  std::unordered_map<std::vector<std::int64_t>, std::shared_ptr<const KnownCall>, WordsHash, SameWords> known;
  std::unordered_set<std::size_t> seen;  ///< hashes of calls that came once: most prefills come no more, and are not worth a place
};

/// As many as plans are kept (src/torch/plan_cache.hpp); then all are forgotten.
constexpr std::size_t kMost = 512, kMostSeen = 4096;

struct Object {
  PyObject_HEAD Calls* calls;
};

Calls& calls_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->calls; }

PyObject* unknown() { return Ref::to(Py_NotImplemented).release(); }
PyObject* not_for_this() { return Ref::to(Py_Ellipsis).release(); }

bool take(Call& call, PyObject* args, PyObject* kwargs) {
  return torch().is_plain() && PyTuple_Check(args) && PyDict_Check(kwargs) && call.take(args, kwargs);
}

bool has(Py_ssize_t got, Py_ssize_t want) {
  if (got != want) PyErr_SetString(PyExc_TypeError, "a wrong number of arguments");
  return got == want;
}

bool came_before(Calls& calls, const Call& call) {
  if (calls.seen.size() >= kMostSeen) calls.seen.clear();
  return !calls.seen.insert(binding::hash_of_words(call.words())).second;
}

PyObject* run(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (!has(count, 2)) return nullptr;
  Call call;
  if (!take(call, given[0], given[1])) return not_for_this();
  Calls& calls = calls_of(self);
  const auto found = calls.known.find(call.words());
  if (found == calls.known.end()) return came_before(calls, call) ? unknown() : not_for_this();
  const std::shared_ptr<const KnownCall> known = found->second;
  if (known == nullptr) return not_for_this();
  return known->fits_schedule_of(call) ? known->run(call) : unknown();
}

constexpr const char* kOperatorCall = "fovea.operator_call";

void release_operator_call(PyObject* capsule) { torch().extension().release(PyCapsule_GetPointer(capsule, kOperatorCall)); }

PyObject* take_operator_call(PyObject*, PyObject*) {
  void* const operator_call = torch().extension().take_call();
  if (operator_call == nullptr) return Ref::to(Py_None).release();
  return PyCapsule_New(operator_call, kOperatorCall, release_operator_call);
}

/// How to repeat a call; null if it cannot be: without an exception, if nobody said anything wrong. `how` is what learn() takes.
std::shared_ptr<const KnownCall> make_known(const Call& call, PyObject* const* how) {
  if (how[0] == Py_None) return nullptr;
  void* const operator_call = PyCapsule_GetPointer(how[0], kOperatorCall);
  if (operator_call == nullptr) return nullptr;
  const auto known = std::make_shared<KnownCall>(operator_call, Ref::to(how[0]));
  return known->describe(call.tensors().size(), how[1], how[2], how[3], how[4]) ? known : nullptr;
}

PyObject* learn(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  if (!has(count, 7)) return nullptr;
  Call call;
  if (!take(call, given[0], given[1])) return Ref::to(Py_None).release();
  auto& known = calls_of(self).known;
  auto found = known.find(call.words());
  if (found == known.end()) {
    const auto made = make_known(call, given + 2);
    if (PyErr_Occurred() != nullptr) return nullptr;
    if (known.size() >= kMost) known.clear();
    found = known.emplace(std::vector(call.words().begin(), call.words().end()), made).first;
  }
  return Ref::to(found->second == nullptr ? Py_None : found->second->token()).release();
}

PyObject* create(PyTypeObject* type, PyObject*, PyObject*) {
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* const self = allocate(type, 0);
  if (self != nullptr) reinterpret_cast<Object*>(self)->calls = new (std::nothrow) Calls;
  return self;
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete reinterpret_cast<Object*>(self)->calls;
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyObject* setup(PyObject*, PyObject* parts) { return torch().find(parts) ? Ref::to(Py_None).release() : nullptr; }

/// Python knows no exceptions of C++.
template <auto kFunction>
PyObject* guarded(PyObject* self, PyObject* const* given, Py_ssize_t count) {
  try {
    return kFunction(self, given, count);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

template <auto kFunction>
PyCFunction method() {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded<kFunction>));
}

PyMethodDef object_methods[] = {
    {"run", method<run>(), METH_FASTCALL,
     "run(args, kwargs): the result; NotImplemented of a call to learn, Ellipsis of one for the function"},
    {"learn", method<learn>(), METH_FASTCALL,
     "learn(args, kwargs, operator_call, tensors, fresh, result, written): keeps a call; returns its token, or None"},
    {}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(create)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
                       {Py_tp_methods, object_methods},
                       {Py_tp_doc, const_cast<char*>("Calls of a function that have been made before.")},
                       {}};

PyType_Spec calls_type{"fovea._short_path.Calls", sizeof(Object), 0, Py_TPFLAGS_DEFAULT, slots};

PyMethodDef module_methods[] = {
    {"setup", setup, METH_O, "setup(parts): what this asks of torch"},
    {"take_operator_call", take_operator_call, METH_NOARGS, "The operator call that has just returned in this thread, or None"},
    {}};

PyModuleDef module{PyModuleDef_HEAD_INIT, "fovea._short_path", "Known calls, run again.", -1, module_methods, {}, {}, {}, {}};

}  // namespace
}  // namespace fovea::python

PyMODINIT_FUNC PyInit__short_path() {
  using namespace fovea::python;
  Ref made(PyModule_Create(&module));
  if (!made) return nullptr;
  Ref type(PyType_FromSpec(&calls_type));
  if (!type || PyModule_AddObject(made.get(), "Calls", type.release()) != 0) return nullptr;
  return made.release();
}
