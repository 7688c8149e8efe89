// SPDX-License-Identifier: Apache-2.0
/// Python's objects, through its limited API: one library serves every version from 3.10 on.
#pragma once

#define Py_LIMITED_API 0x030A0000
#include <Python.h>

#include <utility>

namespace fovea::python {

/// A reference that this holds. All of it wants the interpreter's lock.
class Ref {
 public:
  Ref() = default;
  /// Takes over what a function of Python's API returned.
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  Ref(const Ref& other) : object_(other.object_) { Py_XINCREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

inline Ref attribute(PyObject* object, const char* name) { return Ref(PyObject_GetAttrString(object, name)); }

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

}  // namespace fovea::python
