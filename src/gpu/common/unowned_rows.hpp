// SPDX-License-Identifier: Apache-2.0
/// Threads that fill the rows that no sequence has, and the widths of their stores.
#pragma once

#include <algorithm>
#include <cstdint>

#include "op/common/unowned_rows.hpp"

namespace fovea::gpu {

inline constexpr int kFillThreads = 256, kMostFillGroups = 256;

/// Zeros of one store. Outputs that the library allocates take the widest.
struct alignas(16) WideZero {
  std::uint32_t word[4];
};
using NarrowZero = std::uint16_t;

/// Whether every row of every head consists of whole words at their alignment.
template <class Word>
bool fits_words(const detail::UnownedRows& rows) {
  const auto bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(rows.out)) | static_cast<std::uint64_t>(rows.row_bytes) |
                    static_cast<std::uint64_t>(rows.head_bytes) | static_cast<std::uint64_t>(rows.value_bytes);
  return bits % sizeof(Word) == 0;
}

/// As many groups as rows, but not more than keep a device busy.
constexpr unsigned fill_groups(const detail::UnownedRows& rows) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(rows.total, 1, kMostFillGroups));
}

}  // namespace fovea::gpu
