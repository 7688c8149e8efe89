// SPDX-License-Identifier: Apache-2.0
/// A call that has been made before: where the operator's tensors come from, and what the function returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "call.hpp"

namespace fovea::python {

/// A place of a tensor of the operator or of the result.
struct Source {
  enum class Kind { none, argument, fresh, constant };
  Kind kind = Kind::none;
  std::size_t index = 0;    ///< of the call's tensors, or of the fresh ones
  void* address = nullptr;  ///< of a constant
};

/// A new tensor: function(*arguments, **options), or function(a tensor of the call, **options).
struct Fresh {
  Ref function, arguments, options;
  std::size_t like = 0;
  bool is_like = false;
};

class KnownCall {
 public:
  /// `operator_call` is what ShortPath::take_call gave; `owner` releases it.
  KnownCall(void* operator_call, Ref owner) : operator_call_(operator_call), owner_(std::move(owner)), token_(PyDict_New()) {}
  ~KnownCall() = default;
  KnownCall(const KnownCall&) = delete;
  KnownCall& operator=(const KnownCall&) = delete;

  /// Takes the rest as fovea/_repeat.py makes it. False with an exception set, if it is said wrongly. `count` is how many tensors the call
  /// has.
  bool describe(std::size_t count, PyObject* tensors, PyObject* fresh, PyObject* result, PyObject* written);

  /// An object of this call alone, which a schedule that fits holds.
  PyObject* token() const { return token_.get(); }
  bool fits_schedule_of(const Call& call) const;

  /// What the function returns; null with an exception set, if the call fails.
  PyObject* run(const Call& call) const;

 private:
  bool read_source(PyObject* from, std::size_t count, Source& to);
  bool read_sources(PyObject* from, std::size_t count, std::vector<Source>& to);
  bool read_fresh(PyObject* from, std::size_t count);
  bool make_fresh(const Call& call, std::span<Ref> made, std::span<void*> addresses) const;
  bool mark_written(const Call& call) const;
  static PyObject* tensor_of(const Source& source, const Call& call, std::span<const Ref> fresh);

  static constexpr std::size_t kMostFresh = 4;

  void* operator_call_;
  Ref owner_, token_;
  std::vector<Source> tensors_, results_;
  std::vector<Fresh> fresh_;
  std::vector<std::size_t> written_;  ///< of the call's tensors
  std::vector<Ref> constants_;
  bool returns_tuple_ = false;
};

}  // namespace fovea::python
