// SPDX-License-Identifier: Apache-2.0
/// Which bytes a tensor occupies, and whether two tensors share one.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "fovea/latent_attention.hpp"
#include "fovea/tensor.hpp"

namespace fovea::detail {

/// Runs of bytes: one for each choice of an index on every axis. Known when a call is planned.
struct Extent {
  struct Axis {
    std::int64_t count = 0, step = 0;  ///< of 2 and more, bytes apart
    bool operator==(const Axis&) const = default;
  };
  std::array<Axis, 4> axes{};  ///< the smallest step first
  int rank = 0;
  std::int64_t run = 1;  ///< bytes without a gap; 0 of a tensor without elements

  /// Bytes from the first to behind the last.
  std::int64_t reach() const;
  bool operator==(const Extent&) const = default;
};

/// Axes whose elements lie side by side, or on each other, are one.
Extent extent_of(const TensorDesc& desc);
Extent extent_of(const LatentCacheDesc& desc);
/// Numbers of f32: `value` for each of `batch` and `head`, at the strides of a scale.
Extent extent_of(const ScaleDesc& desc, std::int64_t batch, std::int64_t head);
Extent extent_of_bytes(std::int64_t bytes);

/// Extents of the pointers of a call, in the order of its table of fields. Null for a problem that another one was made into.
using Extents = std::shared_ptr<const std::vector<Extent>>;

/// A tensor of a run. Without an extent, its first byte stands for it.
struct Memory {
  Memory(const void* address_ = nullptr, const Extent* extent_ = nullptr) : address(address_), extent(extent_) {}

  const void* address;
  const Extent* extent;
};

/// Whether the tensors share a byte. Views that interleave, as of K and V in one allocation, do not. Found out exactly unless the strides
/// of both fit each other badly; then a search of bounded length may miss it.
bool overlap(const Memory& a, const Memory& b);

}  // namespace fovea::detail
