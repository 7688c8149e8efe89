// SPDX-License-Identifier: Apache-2.0
/// From torch's values to Fovea's: what the operators of this extension share.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device.hpp"
#include "fovea/fovea.hpp"
#include "plan_cache.hpp"

namespace fovea::binding {

using torch::stable::Tensor;
using OptionalTensor = std::optional<Tensor>;

/// The arguments of one call, taken from torch's stack in the order of the schema.
/// What is taken is owned; what is not, is lost. So a call takes all of them before it looks at any.
class Arguments {
 public:
  explicit Arguments(StableIValue* stack) : next_(stack), key_(CallKey::current()) {
    begin_call();
    key_.clear();
  }

  /// Of a call that is only planned: the first is the device.
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
  Tensor tensor() { return take<Tensor>(); }
  OptionalTensor optional_tensor() { return take<OptionalTensor>(); }
  std::int64_t integer() { return take<std::int64_t>(); }
  std::optional<std::int64_t> optional_integer() { return take<std::optional<std::int64_t>>(); }
  double real() { return take<double>(); }
  bool flag() { return take<bool>(); }
  std::string text();
  std::vector<Tensor> tensors() { return take<std::vector<Tensor>>(); }
  BandMask band() {
    const std::int64_t left = optional_integer().value_or(kUnbounded);
    return {.left = left, .right = optional_integer().value_or(kUnbounded)};
  }

 private:
  StableIValue* next_;
  CallKey& key_;  ///< of what has been taken
};

/// Raises RuntimeError. What torch's stable ABI makes of other exceptions depends on its version, so the text begins with the kind of the
/// error, which the Python package reads: "invalid: " becomes ValueError, "unsupported: " NotImplementedError.
[[noreturn]] void raise(const Error& error);

/// `subject: got X, want Y`, as the library says it.
[[noreturn]] void raise_invalid(const std::string& subject, const std::string& got, const std::string& want);

/// The value, which dense attention takes in double precision. What is no normal float is refused: as one it would become 0, which means
/// the default, or infinite.
double normal(double value, const char* name);

/// Likewise, as the other operations take it.
float narrow(double value, const char* name);

/// Refuses a number that a call would ignore, as another argument is missing.
void expect_none(const char* name, std::optional<std::int64_t> value, const char* missing);

/// What such a text is made of: "cache.shape", "[2, 8]", "Float".
std::string field(const char* name, std::string_view member);
std::string shape_text(const Tensor& tensor);
std::string dtype_text(const Tensor& tensor);
std::string dtype_text(std::int32_t dtype);  // as torch numbers them

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

/// What a call may touch of the tensor is there: it lies on the call's device, and inside of its storage. All that name a tensor ask this.
void check_memory(const Tensor& tensor, const char* name);

/// Whether the storage holds all elements. One that was resized may hold fewer: torch changes no tensor over it then.
bool fits_storage(const Tensor& tensor);

/// Shape, strides, dtype and the alignment that the pointer really has.
TensorDesc describe(const Tensor& tensor, const char* name);
std::optional<TensorDesc> describe(const OptionalTensor& tensor, const char* name);

/// Bytes to which the tensor's memory is aligned, up to 64 or so: what a plan may rely on.
std::int32_t alignment_of(const Tensor& tensor);

/// Whether the dtype is uint8, which no operation computes with: packed bytes.
bool holds_bytes(const Tensor& tensor);

void* data(const Tensor& tensor);

template <class T>
T* data_or_null(const OptionalTensor& tensor) {
  return tensor ? static_cast<T*>(data(*tensor)) : nullptr;
}

/// A vector that the library reads by pointer alone, checked here: dtype, one dimension of `count` elements, contiguous.
void* vector_data(const Tensor& tensor, const char* name, DType dtype, std::int64_t count);
const std::int32_t* int32_vector(const Tensor& tensor, const char* name, std::int64_t count);
const std::int64_t* int64_vector(const Tensor& tensor, const char* name, std::int64_t count);
const float* float_vector(const OptionalTensor& tensor, const char* name, std::int64_t count);

/// Strides of a dequantisation scale: one element, [kv_head], or (with `batch` > 0) [batch, kv_head].
std::optional<ScaleDesc> describe_scale(const OptionalTensor& tensor, const char* name, std::int64_t batch, std::int64_t kv_head);

/// The rows of each sequence in a ragged q. Without cu_seqlens_q, 0, 1, 2, ..: one row each.
const std::int32_t* query_lengths(const OptionalTensor& cu_seqlens_q, std::int64_t batch);

/// The bound of query lengths to plan with: 1 without cu_seqlens_q, as kernels like to know, if there is one row for each sequence.
std::int64_t query_bound(const OptionalTensor& cu_seqlens_q, std::int64_t max_seqlen_q, std::int64_t rows, std::int64_t batch);

/// Runs Fovea on torch's threads: `requested` of them, or with 0 as many as torch itself uses.
void use_torch_threads(int requested);

/// Before each plan: passes on the number of threads that torch uses now. Returns the number of Fovea's.
int follow_torch_threads();

}  // namespace fovea::binding
