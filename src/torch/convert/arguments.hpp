// SPDX-License-Identifier: Apache-2.0
/// From torch's values to Fovea's: what the operators of this extension share.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "call_key.hpp"
#include "device.hpp"
#include "fovea/fovea.hpp"

namespace fovea::binding {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The arguments of one call, taken from torch's stack in the order of the schema. Taken arguments are owned and others leak, so a call
/// takes all of them before it looks at any.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack), key_(CallKey::current()), addresses_(current_addresses()) {
    begin_call();
    key_.clear();
    addresses_.clear();
  }

  /// The arguments of a call that is only planned: the first is the device.
  static Arguments of_planning(StableIValue* stack) {
    Arguments arguments(stack);
    const auto device = arguments.take<torch::stable::Device>();
    begin_planning({device.is_cpu() ? Backend::cpu : gpu_backend(), device.has_index() ? device.index() : 0});
    return arguments;
  }

  template <class T>
  T take() {
    T value = torch::stable::detail::to<T>(*next_++);
    if constexpr (!std::is_same_v<T, StringHandle>) key_.add(value);
    return value;
  }
  Tensor tensor() {
    Tensor tensor = take<Tensor>();
    addresses_.push_back(address_of(tensor));
    return tensor;
  }
  OptionalTensor optional_tensor() {
    OptionalTensor tensor = take<OptionalTensor>();
    addresses_.push_back(tensor ? address_of(*tensor) : nullptr);
    return tensor;
  }
  std::int64_t integer() { return take<std::int64_t>(); }
  std::optional<std::int64_t> optional_integer() { return take<std::optional<std::int64_t>>(); }
  double real() { return take<double>(); }
  bool flag() { return take<bool>(); }
  std::string text();
  std::vector<Tensor> tensors() {
    std::vector<Tensor> tensors = take<std::vector<Tensor>>();
    for (const Tensor& tensor : tensors) addresses_.push_back(address_of(tensor));
    return tensors;
  }
  BandMask band() {
    const std::int64_t left = optional_integer().value_or(kUnbounded);
    return {.left = left, .right = optional_integer().value_or(kUnbounded)};
  }
  BandMask band_and_anchor() {
    BandMask mask = band();
    mask.anchor = flag() ? Anchor::top_left : Anchor::bottom_right;
    return mask;
  }

  /// The address of each tensor taken so far, null for absent ones.
  void* const* addresses() const { return addresses_.data(); }

 private:
  static std::vector<void*>& current_addresses();
  /// Null for a tensor without memory, as a sparse one; describing it says so.
  static void* address_of(const Tensor& tensor) noexcept;

  StableIValue* next_;
  CallKey& key_;  ///< of the arguments taken so far
  std::vector<void*>& addresses_;
};

/// Raises RuntimeError. Other exceptions become different things in versions of torch's stable ABI, so the text begins with the kind of the
/// error, which the Python package reads: "invalid: " becomes ValueError, "unsupported: " NotImplementedError.
[[noreturn]] void raise(const Error& error);

/// `subject: got X, want Y`, as the library says it.
[[noreturn]] void raise_invalid(const std::string& subject, const std::string& got, const std::string& want);

/// Parts of such a text: "cache.shape", "[2, 8]", "Float".
std::string field(const char* name, std::string_view member);
std::string shape_text(const Tensor& tensor);
std::string dtype_text(const Tensor& tensor);
std::string dtype_text(std::int32_t dtype);

/// A dtype by torch's number.
std::int32_t torch_dtype_of(const Tensor& tensor);

/// Whether the dtype is uint8, which no operation computes with: packed bytes.
bool holds_bytes(const Tensor& tensor);

template <class Extents>
std::string list_text(const Extents& extents) {
  std::string text("[");
  for (const std::int64_t extent : extents) text.append(text.size() > 1 ? ", " : "").append(std::to_string(extent));
  return text.append("]");
}

/// A text as the result of an operator: the bytes of a tensor. torch 2.11 to 2.13 leak a str that an operator returns.
StableIValue text_result(std::string_view text);

/// The value, or the library's own error raised.
template <class T>
T value_or_raise(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(result).value();
}

inline void raise_if_failed(const Result<void>& result) {
  if (!result) raise(result.error());
}

/// Refuses a tensor on another device than the call's, or with elements outside of its storage. Every tensor of a call is checked.
void check_memory(const Tensor& tensor, const char* name);

/// Whether the storage holds all elements. One that was resized may hold fewer: torch changes no tensor over it then.
bool fits_storage(const Tensor& tensor);

/// Runs Fovea on torch's threads: `requested` of them, or with 0 as many as torch itself uses.
void use_torch_threads(int requested);

/// Before each plan: passes on the number of threads that torch uses now. Returns the number of Fovea's.
int follow_torch_threads();

/// Whether forward calls of this process ask for PlanOptions::exact_rows.
std::atomic<bool>& exact_rows();

}  // namespace fovea::binding
