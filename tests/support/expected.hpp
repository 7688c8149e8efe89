// SPDX-License-Identifier: Apache-2.0
/// What a case must give, in double precision, and how far from it a result may lie.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bound_case.hpp"
#include "compare.hpp"

namespace fovea::check {

struct Expected {
  std::vector<std::int64_t> shape{};  ///< of out: [rows, head, dv]; append: all elements written
  std::vector<double> out{}, lse{};   ///< [rows, head, dv], [rows, head]
  std::vector<char> written{};        ///< [rows] those of a sequence; the others must keep their poison
  std::vector<char> judged{};         ///< [rows] those with a known result; large cases know only a sample
  double plain_error = 0;             ///< E: the largest error of a plain same-precision implementation
  double half_ulp = 0;                ///< of the output at its largest magnitude

  Tolerance out_tolerance() const { return {.absolute = 2 * plain_error + half_ulp}; }
  static Tolerance lse_tolerance() { return {.absolute = 1e-6, .relative = 8.0 / 65536.0}; }
};

/// Runs the fp64 reference and the plain implementation: on every row, or (tier bench) on a fixed sample of rows.
Expected expect(const BoundCase& bound);

struct Judgement {
  bool ok = true;
  std::string message{};  ///< empty when all is right
  double out_ratio = 0;   ///< largest error / tolerance
  double lse_ratio = 0;
};

/// Judges the outputs and everything around them, and puts the poison back.
Judgement judge(BoundCase& bound, const Expected& expected);

/// Whether outputs, inputs and red zones are all as bind() left them; else says what is not.
std::string what_changed(const BoundCase& bound);

}  // namespace fovea::check
