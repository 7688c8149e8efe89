// SPDX-License-Identifier: Apache-2.0
/// What a call says, in words: how the keys of plans and of the short path are made alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace fovea::binding {

/// Promised at most: the widest vector that a kernel loads at once.
inline constexpr std::uintptr_t kLargestAlignment = 64;

inline std::int32_t alignment_of_address(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t lowest_bit = address & (~address + 1);
  return static_cast<std::int32_t>(address == 0 ? kLargestAlignment : std::min(lowest_bit, kLargestAlignment));
}

inline std::size_t hash_of_words(std::span<const std::int64_t> words) noexcept {
  std::uint64_t hash = words.size();
  for (const std::int64_t word : words) {
    hash = (hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace fovea::binding
