// SPDX-License-Identifier: Apache-2.0
/// fovea._plans: plans that Python holds. The class here runs what fits; fovea/_plan.py makes its objects and answers for everything else.
#include <cstring>
#include <exception>
#include <new>

#include "known.hpp"
#include "plan.hpp"

namespace fovea::python {
namespace {

struct Object {
  PyObject_HEAD Plan* plan;
};

Plan& plan_of(PyObject* self) { return *reinterpret_cast<Object*>(self)->plan; }

/// self.name(values, names): the same arguments, in Python's hands.
PyObject* in_python(PyObject* self, const char* name, const Plan::Given& given) {
  const Py_ssize_t named = given.names == nullptr ? 0 : PyTuple_Size(given.names);
  const Ref args(PyTuple_New(given.count)), kwargs(PyDict_New()), method = attribute(self, name);
  if (!args || !kwargs || !method) return nullptr;
  for (Py_ssize_t at = 0; at < given.count; ++at) PyTuple_SetItem(args.get(), at, Ref::to(given.values[at]).release());
  for (Py_ssize_t at = 0; at < named; ++at) {
    if (PyDict_SetItem(kwargs.get(), PyTuple_GetItem(given.names, at), given.values[given.count + at]) != 0) return nullptr;
  }
  return PyObject_CallFunctionObjArgs(method.get(), args.get(), kwargs.get(), nullptr);
}

/// Raises the error of a plan, in Python's words.
PyObject* raise(PyObject* self, const char* wrong) {
  if (wrong == nullptr) return nullptr;
  const Ref text(PyUnicode_DecodeUTF8(wrong, static_cast<Py_ssize_t>(std::strlen(wrong)), "replace"));
  const Ref method = attribute(self, "_fail");
  return text && method ? PyObject_CallFunctionObjArgs(method.get(), text.get(), nullptr) : nullptr;
}

PyObject* run(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const Plan::Given given{values, count, names};
  Ref result;
  const char* wrong = nullptr;
  switch (plan_of(self).run(given, result, wrong)) {
    case Plan::Outcome::done: return result.release();
    case Plan::Outcome::not_here: return in_python(self, "_run", given);
    case Plan::Outcome::failed: break;
  }
  return raise(self, wrong);
}

PyObject* prepare(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  const Plan::Given given{values, count, names};
  Ref schedule = plan_of(self).schedule();
  if (!schedule) {
    const Ref make = attribute(self, "_new_schedule");
    schedule = make ? Ref(PyObject_CallNoArgs(make.get())) : Ref();
    if (!schedule) return nullptr;
    if (schedule.get() == Py_None) schedule = Ref();
  }
  const char* wrong = nullptr;
  switch (plan_of(self).prepare(given, std::move(schedule), wrong)) {
    case Plan::Outcome::done: return Ref::to(Py_None).release();
    case Plan::Outcome::not_here: return in_python(self, "_prepare", given);
    case Plan::Outcome::failed: break;
  }
  return raise(self, wrong);
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject*) {
  long long held = 0;
  PyObject *slots = nullptr, *order = nullptr, *result = nullptr;
  if (PyArg_ParseTuple(args, "LOOO", &held, &slots, &order, &result) == 0) return nullptr;
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref self(allocate(type, 0));
  if (!self) return nullptr;
  auto* const plan = new Plan(reinterpret_cast<void*>(static_cast<std::intptr_t>(held)));
  reinterpret_cast<Object*>(self.get())->plan = plan;
  return plan->describe(slots, order, result) ? self.release() : nullptr;
}

template <class Held, auto member>
void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete (reinterpret_cast<Held*>(self)->*member);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

struct KnownObject {
  PyObject_HEAD Known* known;
};

PyObject* create_known(PyTypeObject* type, PyObject* args, PyObject*) {
  long long function = 0;
  const char* kinds = nullptr;
  PyObject* defaults = nullptr;
  if (PyArg_ParseTuple(args, "LsO!", &function, &kinds, &PyTuple_Type, &defaults) == 0) return nullptr;
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  Ref self(allocate(type, 0));
  if (!self) return nullptr;
  auto* const run_known = reinterpret_cast<binding::RunKnown*>(static_cast<std::intptr_t>(function));
  reinterpret_cast<KnownObject*>(self.get())->known = new Known(run_known, kinds, Ref::to(defaults));
  return self.release();
}

/// Whether the plan of an earlier call ran.
PyObject* run_known(PyObject* self, PyObject* args) {
  const char* wrong = nullptr;
  switch (reinterpret_cast<KnownObject*>(self)->known->run(args, wrong)) {
    case Known::Outcome::done: return Ref::to(Py_True).release();
    case Known::Outcome::unknown: return Ref::to(Py_False).release();
    case Known::Outcome::failed: break;
  }
  if (wrong != nullptr) PyErr_SetString(PyExc_RuntimeError, wrong);
  return nullptr;
}

PyObject* setup(PyObject*, PyObject* parts) { return torch().find(parts) ? Ref::to(Py_None).release() : nullptr; }

/// Python knows no exceptions of C++.
template <auto kFunction, class... Arguments>
PyObject* guarded(Arguments... arguments) {
  try {
    return kFunction(arguments...);
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

template <auto kFunction>
PyCFunction method() {
  using Function = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t, PyObject*);
  const Function function = guarded<kFunction, PyObject*, PyObject* const*, Py_ssize_t, PyObject*>;
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef object_methods[] = {
    {"run", method<run>(), METH_FASTCALL | METH_KEYWORDS,
     "run(*tensors, prepared=False, **tensors): computes with these tensors, and the planned ones in place of those not given."},
    {"prepare", method<prepare>(), METH_FASTCALL | METH_KEYWORDS,
     "prepare(*tensors, **tensors): computes the schedule that later run(.., prepared=True) share."},
    {}};

PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(guarded<create, PyTypeObject*, PyObject*, PyObject*>)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(destroy<Object, &Object::plan>)},
                       {Py_tp_methods, object_methods},
                       {Py_tp_doc, const_cast<char*>("A plan that runs over tensors like the planned ones.")},
                       {}};

PyType_Spec plan_type{"fovea._plans.Plan", sizeof(Object), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};

PyMethodDef known_methods[] = {{"run", guarded<run_known, PyObject*, PyObject*>, METH_O,
                                "run(args): runs the plan of an earlier call with such arguments. False if there is none."},
                               {}};

PyType_Slot known_slots[] = {{Py_tp_new, reinterpret_cast<void*>(guarded<create_known, PyTypeObject*, PyObject*, PyObject*>)},
                             {Py_tp_dealloc, reinterpret_cast<void*>(destroy<KnownObject, &KnownObject::known>)},
                             {Py_tp_methods, known_methods},
                             {Py_tp_doc, const_cast<char*>("Repeated calls of an operator.")},
                             {}};

PyType_Spec known_type{"fovea._plans.Known", sizeof(KnownObject), 0, Py_TPFLAGS_DEFAULT, known_slots};

PyMethodDef module_methods[] = {{"setup", setup, METH_O, "setup(parts): hands over what plans need of torch"}, {}};

PyModuleDef module{PyModuleDef_HEAD_INIT, "fovea._plans", "Plans that Python holds.", -1, module_methods, {}, {}, {}, {}};

}  // namespace
}  // namespace fovea::python

PyMODINIT_FUNC PyInit__plans() {
  using namespace fovea::python;
  Ref made(PyModule_Create(&module));
  if (!made) return nullptr;
  Ref type(PyType_FromSpec(&plan_type));
  if (!type || PyModule_AddObject(made.get(), "Plan", type.release()) != 0) return nullptr;
  Ref known(PyType_FromSpec(&known_type));
  if (!known || PyModule_AddObject(made.get(), "Known", known.release()) != 0) return nullptr;
  return made.release();
}
