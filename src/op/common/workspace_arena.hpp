// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/device.hpp"

namespace fovea::detail {

/// Hands out consecutive pieces of a buffer, or only counts when there is none.
class WorkspaceArena {
 public:
  explicit WorkspaceArena(std::byte* base, std::size_t alignment = kWorkspaceAlignment) : base_(base), alignment_(alignment) {}

  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ != nullptr ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
    const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
    bytes_ += (size + alignment_ - 1) / alignment_ * alignment_;
    return piece;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t alignment_;  // of the pieces
  std::size_t bytes_ = 0;
};

}  // namespace fovea::detail
