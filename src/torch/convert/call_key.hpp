// SPDX-License-Identifier: Apache-2.0
/// The key of a call's plan, all that it says: everything but addresses.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "alignment.hpp"

namespace fovea::binding {

/// The dtype, device, shape, strides and alignment of each tensor; every other argument as it is.
class CallKey {
 public:
  /// The key of the call in progress in this thread.
  static CallKey& current();

  void clear() {
    words_.clear();
    is_whole_ = true;
  }
  /// A key that another library has made.
  void assign(const std::int64_t* words, std::size_t count) {
    words_.assign(words, words + count);
    is_whole_ = true;
  }
  void add(const torch::stable::Tensor& tensor);
  void add(const torch::stable::Device& device);
  void add(const std::string& text);
  void add(double value);
  template <class T>
  requires std::is_integral_v<T>
  void add(T value) { words_.push_back(static_cast<std::int64_t>(value)); }
  template <class T>
  void add(const std::optional<T>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  template <class T>
  void add(const std::vector<T>& values) {
    add(values.size());
    for (const T& value : values) add(value);
  }

  const std::vector<std::int64_t>& words() const { return words_; }
  /// False if a tensor cannot say all of this (a sparse one has no strides), or if its storage lacks elements. Such a call keeps no plan;
  /// describing the tensor says what is wrong.
  bool is_whole() const { return is_whole_; }

 private:
  std::vector<std::int64_t> words_;
  bool is_whole_ = true;
};

struct CallKeyHash {
  std::size_t operator()(const std::vector<std::int64_t>& words) const noexcept;
};

}  // namespace fovea::binding
