// SPDX-License-Identifier: Apache-2.0
/// Integer division as schedules, plans and kernels use it. Constant expressions also run on devices.
#pragma once

#include <cstdint>
#include <type_traits>

namespace fovea::detail {

/// Rounded up. Requires value >= 0 and divisor > 0.
template <class Value, class Divisor>
constexpr std::common_type_t<Value, Divisor> ceil_div(Value value, Divisor divisor) {
  return (value + divisor - 1) / divisor;
}

/// The smallest multiple of `multiple` that is not below `value`.
template <class Value, class Multiple>
constexpr std::common_type_t<Value, Multiple> round_up(Value value, Multiple multiple) {
  return ceil_div(value, multiple) * multiple;
}

/// Division by a number known beforehand, as a multiplication and a shift, for every x from 0 to 2^31 - 1. With 31 bits more than the
/// divisor has, the factor stays below 2^32. Its rounding adds less than 1 / divisor to a quotient (Granlund and Montgomery, 1994).
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
