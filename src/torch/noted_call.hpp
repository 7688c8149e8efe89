// SPDX-License-Identifier: Apache-2.0
/// A call on the short path, as its arguments are taken.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fovea::binding {

/// The arguments of a call that are no tensors, in order. Numbers are as torch's stack holds them.
struct Note {
  struct Value {
    bool given = true;
    StableIValue number{};
    std::string text{};
  };
  std::int64_t number = 0;
  std::vector<Value> values{};
};

/// A call on the short path: where its arguments come from.
struct NotedCall {
  const Note& note;
  std::vector<std::optional<torch::stable::Tensor>> tensors;
};

/// Of this thread; null beside the short path.
NotedCall*& noted_call();

}  // namespace fovea::binding
