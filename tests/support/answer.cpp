// SPDX-License-Identifier: Apache-2.0
#include "answer.hpp"

#include <cmath>

namespace fovea::check {

void Judgement::fail(const std::string& what) {
  message.append(ok ? "" : "; ").append(what);
  ok = false;
}

void Answer::expect(std::int64_t offset, std::span<const double> exact, std::span<const float> plain, std::span<const float> native) {
  runs_.push_back({offset, static_cast<std::int64_t>(exact.size()), true});
  exact_.insert(exact_.end(), exact.begin(), exact.end());
  plain_.insert(plain_.end(), plain.begin(), plain.end());
  native_.insert(native_.end(), native.begin(), native.end());
}

void Answer::expect_finite(std::int64_t offset, std::int64_t count) { runs_.push_back({offset, count, false}); }

Tolerance Answer::tolerance(E4m3Products products) const {
  if (native_tolerance_ && products == E4m3Products::native) return *native_tolerance_;
  if (tolerance_) return *tolerance_;
  const bool native = products == E4m3Products::native && !native_.empty();
  const double twice = 2 * largest_error(native ? native_ : plain_, exact_);
  if (logarithm_) return {.absolute = twice, .relative = kLseRelative};
  return {.absolute = twice + 0.5 * ulp(tensor_.desc().dtype, largest_magnitude(exact_))};
}

Accuracy Answer::accuracy() const {
  double product = 0, got2 = 0, want2 = 0, error = 0, size = 0;
  auto want = exact_.begin();
  for (const Run& run : runs_)
    for (std::int64_t at = run.offset; run.known && at < run.offset + run.count; ++at, ++want) {
      const double got = tensor_.at(at);
      product += got * *want;
      got2 += got * got;
      want2 += *want * *want;
      error += std::fabs(got - *want);
      size += std::fabs(*want);
    }
  return {product / std::sqrt(got2 * want2), error / size};
}

void Answer::judge(Judgement& verdict) const {
  std::vector<float> got;
  got.reserve(exact_.size());
  std::int64_t not_finite = 0;
  for (const Run& run : runs_) {
    for (std::int64_t at = run.offset; at < run.offset + run.count; ++at) {
      const float value = tensor_.at(at);
      if (run.known)
        got.push_back(value);
      else
        not_finite += std::isfinite(value) ? 0 : 1;
    }
    tensor_.restore(run.offset, run.count);
  }
  const Comparison result = compare(got, exact_, tolerance(verdict.products));
  verdict.worst = std::max(verdict.worst, result.largest_ratio);
  std::int64_t row = 1;
  for (const std::int64_t extent : row_) row *= extent;
  std::vector<std::int64_t> shape{static_cast<std::int64_t>(exact_.size()) / std::max<std::int64_t>(row, 1)};
  shape.insert(shape.end(), row_.begin(), row_.end());
  if (!result.ok()) verdict.fail(name_ + ": " + describe(result, shape));
  if (not_finite > 0) verdict.fail(name_ + ": " + std::to_string(not_finite) + " elements outside the sample are NaN or infinite");
}

}  // namespace fovea::check
