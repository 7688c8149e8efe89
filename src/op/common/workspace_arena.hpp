// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "fovea/device.hpp"
#include "op/common/division.hpp"

namespace fovea::detail {

/// Hands out consecutive pieces of a buffer. Without a buffer it hands out nullptr and counts bytes.
class WorkspaceArena {
 public:
  explicit WorkspaceArena(std::byte* base, std::size_t alignment = kWorkspaceAlignment) : base_(base), alignment_(alignment) {}

  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ != nullptr ? reinterpret_cast<T*>(base_ + bytes_) : nullptr;
    bytes_ += round_up(static_cast<std::size_t>(count) * sizeof(T), alignment_);
    return piece;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  std::size_t alignment_;  // of the pieces
  std::size_t bytes_ = 0;
};

}  // namespace fovea::detail
