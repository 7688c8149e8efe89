// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fovea::detail {

/// Division by a number known beforehand, as a product and a shift: for every x from 0 to 2^31 - 1. With 31 bits more than the divisor has,
/// the factor stays below 2^32, and what rounding it up adds to a product is less than 1 / divisor (Granlund and Montgomery, 1994).
struct FastDivmod {
  constexpr FastDivmod() = default;
  constexpr explicit FastDivmod(int by) : divisor(by) {
    for (std::int64_t power = 1; power < by; power *= 2) ++shift;
    factor = static_cast<std::uint32_t>((std::uint64_t{1} << shift) / static_cast<std::uint64_t>(by) + 1);
  }

  constexpr int quotient(int x) const { return static_cast<int>(std::uint64_t{static_cast<std::uint32_t>(x)} * factor >> shift); }

  int divisor = 1;
  std::uint32_t factor = (std::uint32_t{1} << 31) + 1;
  int shift = 31;
};

}  // namespace fovea::detail
