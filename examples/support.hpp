// SPDX-License-Identifier: Apache-2.0
/// Helpers of the examples beside Fovea: numbers to compute with, and aligned scratch memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fovea/fovea.hpp>
#include <limits>
#include <random>
#include <vector>

/// Scratch memory for one plan: 64-byte aligned, not initialised by anyone.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes) : lines_((bytes + sizeof(Line) - 1) / sizeof(Line)), bytes_(bytes) {}
  operator fovea::Workspace() { return {lines_.data(), bytes_}; }

 private:
  struct alignas(fovea::kWorkspaceAlignment) Line {
    std::byte bytes[fovea::kWorkspaceAlignment];
  };
  std::vector<Line> lines_;
  std::size_t bytes_;
};

inline std::vector<float> random_values(std::int64_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  std::generate(values.begin(), values.end(), [&] { return normal(engine); });
  return values;
}

/// Filled with NaN, so that an unwritten element cannot pass for a result.
inline std::vector<float> unwritten(std::int64_t count) {
  return std::vector<float>(static_cast<std::size_t>(count), std::numeric_limits<float>::quiet_NaN());
}

inline bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

inline bool all_near(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [=](float x, float y) { return std::abs(x - y) <= tolerance; });
}
