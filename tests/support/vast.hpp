// SPDX-License-Identifier: Apache-2.0
/// Finite scores far beyond what exp can hold, alone or among ordinary ones. Q is zero except in its first channel. A score then has one
/// term, and every order of summing gives the same result.
#pragma once

#include <cstdint>

#include "fovea/tensor.hpp"

namespace fovea::check {

struct Vast {
  /// mixed: a third of the scores are 0. few: one key in sixteen, beside scores of 0.
  enum class Keys : std::uint8_t { positive, negative, mixed, few };

  float size = 0;  ///< scores lie between this and twice it, either sign; 0: the case has ordinary ones
  Keys keys{};

  explicit operator bool() const { return size != 0; }
  /// The scale of the scores: 1, unless q cannot hold the remaining factor.
  float scale(DType q) const { return q == DType::f16 || q == DType::e4m3 ? size / 256 : 1.0f; }
  float q(std::int64_t channel, float scale) const { return channel == 0 ? size / scale : 0.0f; }
  /// The first channel of a key, exact in every dtype. Equal keys tie. The others lie too far apart for their weights to matter.
  float k(std::int64_t token) const {
    const float step = 1.0f + 0.125f * static_cast<float>(token * 5 % 8);
    switch (keys) {
      case Keys::positive: return step;
      case Keys::negative: return -step;
      case Keys::mixed: return token % 3 == 0 ? 0.0f : token % 3 == 1 ? -step : step;
      default: return token % 16 == 5 ? step : 0.0f;
    }
  }
};

template <class Case>
Case with_vast(Case spec, Vast vast) {
  spec.vast = vast;
  spec.scale = vast.scale(spec.dtype);
  return spec;
}

}  // namespace fovea::check
