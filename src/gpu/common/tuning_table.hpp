// SPDX-License-Identifier: Apache-2.0
/// Tuning tables have named rows. The build reads the names and makes the instances of each row (cmake/instances.cmake).
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace fovea::gpu {

/// A row of a tuning table: {"name", {fields of Tuning}}.
template <class Tuning>
struct Named : Tuning {
  constexpr Named(std::string_view row, const Tuning& tuning) : Tuning(tuning), name(row) {}

  std::string_view name;
};

/// The index of a row. A constant expression, so an unknown name does not compile, and neither does another number of rows.
template <std::size_t kRows, class Tuning>
constexpr int row_named(const std::array<Named<Tuning>, kRows>& table, std::string_view name) {
  std::size_t index = 0;
  while (table.at(index).name != name) ++index;
  return static_cast<int>(index);
}

}  // namespace fovea::gpu
