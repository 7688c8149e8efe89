// SPDX-License-Identifier: Apache-2.0
/// Plans of earlier calls. A call that says the same as one before it, other addresses aside, runs the plan of that one: nothing is
/// described, validated or planned again.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device.hpp"

namespace fovea::binding {

/// What a call says: of each tensor its dtype, device, shape, strides and alignment, and every other argument as it is.
class CallKey {
 public:
  /// Of the call in progress in this thread.
  static CallKey& current();

  void clear() {
    words_.clear();
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
  /// False where a tensor does not say all of this (a sparse one has no strides) or its storage lacks elements. No plan is kept for such a
  /// call, so that describing the tensor says what is wrong with it.
  bool is_whole() const { return is_whole_; }

 private:
  std::vector<std::int64_t> words_;
  bool is_whole_ = true;
};

class RepeatableCall;  // repeatable_call.hpp

/// The operator call that has just returned in this thread, if it may be repeated: its plan, which stays until the next call, and how to
/// copy it.
struct LastCall {
  const void* planned = nullptr;
  std::unique_ptr<RepeatableCall> (*copy)(const void* planned) = nullptr;
};
LastCall& last_call();

struct CallKeyHash {
  std::size_t operator()(const std::vector<std::int64_t>& words) const noexcept;
};

/// A plan, what it is of, and the device that the tensors of the call are on.
template <class Desc_, class Plan>
struct Planned {
  Planned(Desc_ of, Plan made) : desc(std::move(of)), plan(std::move(made)), device(call_device()) {}

  Desc_ desc;
  Plan plan;
  Device device;
};

int follow_torch_threads();  // arguments.hpp

/// Plans of one operation in one thread, so that no lock is needed.
template <class Planned>
class PlanCache {
 public:
  /// The plan of the call in progress; `make` describes, validates and plans. Valid until the next call of the thread.
  template <class Make>
  const Planned& get(const Make& make) {
    last_call() = {};
    CallKey& key = CallKey::current();
    key.add(follow_torch_threads());
    if (!key.is_whole()) plans_.erase(key.words());
    if (const auto found = plans_.find(key.words()); found != plans_.end()) {
      set_call_device(found->second.device);
      return found->second;
    }
    Planned made = make();  // before anything is forgotten: it may raise
    if (plans_.size() >= kMost) plans_.clear();
    return plans_.emplace(key.words(), std::move(made)).first->second;
  }

 private:
  /// Several models' worth of decode steps. Prefills come in many shapes and fill the cache, which is emptied then.
  static constexpr std::size_t kMost = 512;
  std::unordered_map<std::vector<std::int64_t>, Planned, CallKeyHash> plans_;
};

template <class Make>
const auto& remembered(const Make& make) {
  thread_local PlanCache<std::invoke_result_t<Make>> cache;  // one for each operation, as each has a `make` of its own
  return cache.get(make);
}

}  // namespace fovea::binding
