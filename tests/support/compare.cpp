// SPDX-License-Identifier: Apache-2.0
#include "compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace fovea::check {
namespace {

/// 0 for a perfect element, infinite for a misplaced NaN or Inf. No comparison with NaN can pass.
double error_of(float got, double want) {
  constexpr double kMisplaced = std::numeric_limits<double>::infinity();
  if (std::isnan(want)) return std::isnan(got) ? 0.0 : kMisplaced;
  if (std::isinf(want)) return static_cast<double>(got) == want ? 0.0 : kMisplaced;
  return std::isfinite(got) ? std::fabs(static_cast<double>(got) - want) : kMisplaced;
}

}  // namespace

Comparison compare(const std::vector<float>& got, const std::vector<double>& want, Tolerance tolerance) {
  Comparison result{.elements = static_cast<std::int64_t>(want.size())};
  result.wrong = static_cast<std::int64_t>(std::max(got.size(), want.size()) - std::min(got.size(), want.size()));
  double worst = -1;
  for (std::size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
    const double error = error_of(got[i], want[i]);
    const double allowed = tolerance.absolute + (std::isfinite(want[i]) ? tolerance.relative * std::max(1.0, std::fabs(want[i])) : 0.0);
    if (std::isfinite(error) && allowed > 0) result.largest_ratio = std::max(result.largest_ratio, error / allowed);
    if (error <= allowed) continue;
    ++result.wrong;
    if (error <= worst) continue;
    worst = error;
    result.worst_index = static_cast<std::int64_t>(i);
    result.worst_got = got[i];
    result.worst_want = want[i];
    result.worst_allowed = allowed;
  }
  return result;
}

double largest_error(const std::vector<float>& plain, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = error_of(plain[i], exact[i]);
    if (std::isfinite(error)) largest = std::max(largest, error);
  }
  return largest;
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values)
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  return largest;
}

std::string describe(const Comparison& comparison, const std::vector<std::int64_t>& shape) {
  if (comparison.ok())
    return fmt::format("{} elements right, largest error {:.2f} of the tolerance", comparison.elements, comparison.largest_ratio);
  if (comparison.worst_index < 0) return fmt::format("{} elements missing or too many", comparison.wrong);
  std::vector<std::int64_t> position(shape.size());
  std::int64_t rest = comparison.worst_index;
  for (std::size_t axis = shape.size(); axis-- > 0; rest /= shape[axis]) position[axis] = rest % shape[axis];
  return fmt::format("{} of {} elements wrong, worst at [{}]: got {:.9g}, want {:.9g} +- {:.3g}", comparison.wrong, comparison.elements,
                     fmt::join(position, ", "), comparison.worst_got, comparison.worst_want, comparison.worst_allowed);
}

}  // namespace fovea::check
