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

/// How an implementation multiplies e4m3 inputs: widened to bf16 or f32, or in a matrix unit of e4m3 (plain.hpp).
enum class E4m3Products : std::uint8_t { widened, native };

struct Judgement {
  E4m3Products products = E4m3Products::widened;  ///< whose rounding is allowed
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

/// Relative tolerance of lse and of the largest score, beside 2 E.
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
  /// The same for E4m3Products::native.
  Answer& within_of_native(Tolerance tolerance) {
    native_tolerance_ = tolerance;
    return *this;
  }

  /// 2 E + kLseRelative * max(1, |x|) instead.
  Answer& as_logarithm() {
    logarithm_ = true;
    return *this;
  }

  /// Elements at `offset` that must be `exact`. `plain` is the result of a plain same-precision implementation, `native` that of one with
  /// E4m3Products::native; of all rows or of none.
  void expect(std::int64_t offset, std::span<const double> exact, std::span<const float> plain = {}, std::span<const float> native = {});
  /// Elements that must be finite. Nothing else is known of them.
  void expect_finite(std::int64_t offset, std::int64_t count);

  /// 2 E + half an output ulp at the largest magnitude, where E is the largest error of the plain implementation.
  Tolerance tolerance(E4m3Products products = E4m3Products::widened) const;
  /// Accuracy of the elements with known results.
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
  std::optional<Tolerance> tolerance_{}, native_tolerance_{};
  bool logarithm_ = false;
  std::vector<Run> runs_{};
  std::vector<double> exact_{};
  std::vector<float> plain_{}, native_{};
};

}  // namespace fovea::check
