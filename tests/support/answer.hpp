// SPDX-License-Identifier: Apache-2.0
/// The expected contents of one output in double precision, and the tolerance of a result.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compare.hpp"
#include "hostile_tensor.hpp"

namespace fovea::check {

struct Judgement {
  bool ok = true;
  std::string message{};  ///< empty when all is right
  double worst = 0;       ///< largest error / tolerance
  std::string note{};     ///< what else was measured, for people

  void fail(const std::string& what);
};

/// How near a whole result is to the exact one.
struct Accuracy {
  double cosine = 0, relative_l1 = 0;
};

/// Of lse and of the largest score, beside 2 E.
inline constexpr double kLseRelative = 0x1p-19;

/// Rows are added one by one. Elements that belong to no row must keep their poison.
class Answer {
 public:
  /// `row` is the shape of a row, for messages.
  Answer(std::string_view name, HostileTensor tensor, std::vector<std::int64_t> row)
      : name_(name), tensor_(std::move(tensor)), row_(std::move(row)) {}
  /// The tolerance follows from the plain results that come with the rows, unless one is given.
  Answer& within(Tolerance tolerance) {
    tolerance_ = tolerance;
    return *this;
  }

  /// 2 E + kLseRelative * max(1, |x|) instead.
  Answer& as_logarithm() {
    logarithm_ = true;
    return *this;
  }

  /// Elements at `offset` that must be `exact`. `plain` is the result of a plain same-precision implementation.
  void expect(std::int64_t offset, std::span<const double> exact, std::span<const float> plain = {});
  /// Elements that must be finite. Nothing else is known of them.
  void expect_finite(std::int64_t offset, std::int64_t count);

  /// 2 E + half an output ulp at the largest magnitude, where E is the largest error of the plain implementation.
  Tolerance tolerance() const;
  /// Of the elements with known results.
  Accuracy accuracy() const;
  /// Judges the tensor, then restores its contents at the time it was sealed.
  void judge(Judgement& verdict) const;

 private:
  struct Run {
    std::int64_t offset, count;
    bool known;
  };
  std::string name_;
  HostileTensor tensor_;
  std::vector<std::int64_t> row_;
  std::optional<Tolerance> tolerance_{};
  bool logarithm_ = false;
  std::vector<Run> runs_{};
  std::vector<double> exact_{};
  std::vector<float> plain_{};
};

}  // namespace fovea::check
