// SPDX-License-Identifier: Apache-2.0
/// ALiBi as parameters of Hopper's dense kernels.
#pragma once

#include <cstdint>

namespace fovea::gpu::sm90::dense {

/// Scores are in units of products, or natural ones where those do not suffice.
struct AlibiParams {
  const float* slopes = nullptr;
  std::int64_t slope_batch = 0, slope_head = 0;
  bool natural = false;      ///< products are scaled, or softcapped, before the bias is added
  float units_of_slope = 1;  ///< a slope in the units of scores is this many times the natural one
};

/// Whether scores are natural: there is a softcap, or the reciprocal of the scale is no ordinary number.
template <class Problem>
bool has_natural_scores(const Problem& p) {
  constexpr double kLeast = 0x1p-60, kMost = 0x1p60;
  return p.softcap != 0 || !(p.scale >= kLeast && p.scale <= kMost);
}

template <class Problem>
AlibiParams alibi_of(const Problem& p, const float* slopes) {
  const bool natural = has_natural_scores(p);
  return {.slopes = slopes,
          .slope_batch = p.alibi_slopes.batch_stride,
          .slope_head = p.alibi_slopes.head_stride,
          .natural = natural,
          .units_of_slope = natural ? 1.0f : static_cast<float>(1 / p.scale)};
}

}  // namespace fovea::gpu::sm90::dense
