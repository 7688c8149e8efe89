// SPDX-License-Identifier: Apache-2.0
#include "plain_quantized.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "numeric.hpp"

namespace fovea::check {
namespace {

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/// The largest magnitude of a group, with the floor that keeps zeros zeros.
struct Largest {
  float amax = 1e-7f;
  bool finite = true;

  void add(float x) {
    finite = finite && std::isfinite(x);
    amax = std::max(amax, std::fabs(x));  // a NaN leaves it
  }
  float scale(float most) const { return finite ? amax / most : std::numeric_limits<float>::quiet_NaN(); }
};

}  // namespace

std::vector<float> PlainTokens::mean() const {
  std::vector<float> sums(index(dim));
  float count = 0;
  for (std::int64_t token = 0; token < tokens(); ++token) {
    if (counts[index(token)] == 0) continue;
    count += 1;
    for (std::int64_t d = 0; d < dim; ++d) sums[index(d)] += row(token)[d];
  }
  for (float& sum : sums) sum = count > 0 ? sum / count : 0.0f;
  return sums;
}

PlainTokens PlainTokens::less(const std::vector<float>& mean) const {
  PlainTokens centred = *this;
  for (std::size_t i = 0; i < values.size(); ++i) centred.values[i] -= mean[i % index(dim)];
  return centred;
}

PlainCodes plain_int8(const PlainTokens& from, const Int8Groups& groups, bool is_query) {
  const std::int64_t block = is_query ? Int8Groups::kQBlock : Int8Groups::kKBlock;
  const std::int64_t per_block = is_query ? groups.q_per_block() : groups.k_per_block();
  PlainCodes to{.dim = from.dim, .codes = std::vector<float>(from.values.size())};
  std::vector<Largest> largest(index(Int8Groups::blocks(from.tokens(), block) * per_block));
  to.has_member.resize(largest.size());
  for (std::int64_t token = 0; token < from.tokens(); ++token) {
    to.group.push_back(is_query ? groups.q_group(token) : groups.k_group(token));
    if (from.counts[index(token)] == 0) continue;
    const std::size_t group = index(to.group.back());
    to.has_member[group] = 1;
    for (std::int64_t d = 0; d < from.dim; ++d) largest[group].add(from.row(token)[d]);
  }
  for (const Largest& group : largest) to.scales.push_back(group.scale(127.0f));
  for (std::int64_t token = 0; token < from.tokens(); ++token) {
    const Largest& group = largest[index(to.group[index(token)])];
    const float factor = 127.0f / group.amax;
    for (std::int64_t d = 0; d < from.dim; ++d)
      to.codes[index(token * from.dim + d)] = group.finite ? std::nearbyint(from.row(token)[d] * factor) : 0.0f;
  }
  return to;
}

PlainCodes plain_v(const PlainTokens& from, DType to_dtype) {
  PlainCodes to{.dim = from.dim, .codes = std::vector<float>(from.values.size())};
  for (std::int64_t d = 0; d < from.dim; ++d) {
    Largest largest;
    for (std::int64_t token = 0; token < from.tokens(); ++token)
      if (from.counts[index(token)] != 0) largest.add(from.row(token)[d]);
    const bool scaled = to_dtype == DType::e4m3;
    if (scaled) to.scales.push_back(largest.scale(448.0f));
    const float factor = scaled ? 448.0f / largest.amax : 1.0f;
    for (std::int64_t token = 0; token < from.tokens(); ++token) {
      const float x = from.row(token)[d] * factor;
      to.codes[index(token * from.dim + d)] = scaled && !largest.finite ? 0.0f : rounded(to_dtype, x);
    }
  }
  return to;
}

}  // namespace fovea::check
