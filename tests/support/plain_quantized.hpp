// SPDX-License-Identifier: Apache-2.0
/// The quantisers once more, token by token, as include/fovea/quantized_attention.hpp states them. The library must match them bit for bit.
/// As the 8-bit implementation without tricks they also set the tolerance of attention on quantised tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/quantized_attention.hpp"

namespace fovea::check {

/// Tokens of one sequence and head, [tokens, dim].
struct PlainTokens {
  std::int64_t dim = 0;
  std::vector<float> values{};
  std::vector<char> counts{};  ///< [tokens] whether a token enters scales and means

  std::int64_t tokens() const { return static_cast<std::int64_t>(counts.size()); }
  const float* row(std::int64_t token) const { return values.data() + token * dim; }
  /// One f32 sum a channel, in the order of the tokens.
  std::vector<float> mean() const;
  PlainTokens less(const std::vector<float>& mean) const;
};

/// Quantised values as numbers of the small type. Those of tokens that do not count are meaningless.
struct PlainCodes {
  std::int64_t dim = 0;
  std::vector<float> codes{};         ///< [tokens, dim]
  std::vector<float> scales{};        ///< int8: [groups], all of the sequence's blocks; V: [dim], or none
  std::vector<std::int64_t> group{};  ///< int8: [tokens]
  std::vector<char> has_member{};     ///< int8: [groups] whether a token that counts lies in it

  /// The scale of an element.
  float scale(std::int64_t token, std::int64_t d) const {
    if (scales.empty()) return 1.0f;
    return group.empty() ? scales[static_cast<std::size_t>(d)] : scales[static_cast<std::size_t>(group[static_cast<std::size_t>(token)])];
  }
  float code(std::int64_t token, std::int64_t d) const { return codes[static_cast<std::size_t>(token * dim + d)]; }
};

PlainCodes plain_int8(const PlainTokens& from, const Int8Groups& groups, bool is_query);
PlainCodes plain_v(const PlainTokens& from, DType to);

}  // namespace fovea::check
