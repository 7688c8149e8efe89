// SPDX-License-Identifier: Apache-2.0
/// Judges numbers element by element. Nothing is averaged, and NaN never passes by being incomparable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fovea::check {

/// |got - want| <= absolute + relative * max(1, |want|). With a relative bound alone, elements that cross 0 would have to be exact there.
/// NaN exactly where `want` has NaN, infinities likewise and of the same sign.
struct Tolerance {
  double absolute = 0;
  double relative = 0;
};

struct Comparison {
  std::int64_t elements = 0;
  std::int64_t wrong = 0;
  std::int64_t worst_index = -1;  ///< of the worst wrong element; a misplaced NaN or Inf counts as infinitely wrong
  float worst_got = 0;
  double worst_want = 0;
  double worst_allowed = 0;
  double largest_ratio = 0;  ///< error / tolerance over the finite elements; up to 1 is right

  bool ok() const { return wrong == 0; }
};

/// Sizes must agree. Each element that `got` lacks counts as wrong.
Comparison compare(const std::vector<float>& got, const std::vector<double>& want, Tolerance tolerance);

/// The largest error of `plain` against `exact` over elements that are finite in both: E of the tolerance 2 E + atol.
double largest_error(const std::vector<float>& plain, const std::vector<double>& exact);
double largest_magnitude(const std::vector<double>& values);

/// "3 of 4096 elements wrong, worst at [1, 0, 17]: got 0.5, want 0.25 +- 0.001"
std::string describe(const Comparison& comparison, const std::vector<std::int64_t>& shape);

}  // namespace fovea::check
