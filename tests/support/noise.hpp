// SPDX-License-Identifier: Apache-2.0
/// Random numbers that are the same with every compiler and standard library.
#pragma once

#include <cstdint>

namespace fovea::check {

/// The finaliser of splitmix64.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Sum of four uniforms, scaled to variance 1: close enough to a normal distribution, and cheap.
constexpr float near_normal(std::uint64_t bits) {
  std::int64_t sum = -131070;
  for (int shift = 0; shift < 64; shift += 16) sum += static_cast<std::int64_t>((bits >> shift) & 0xffff);
  return static_cast<float>(sum) * (1.7320508f / 65536.0f);
}

/// One number after the other.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed)) {}
  std::uint64_t bits() { return mix(state_ += 0x9e3779b97f4a7c15u); }
  float normal() { return near_normal(bits()); }
  std::int64_t below(std::int64_t bound) { return static_cast<std::int64_t>(bits() % static_cast<std::uint64_t>(bound)); }

 private:
  std::uint64_t state_;
};

}  // namespace fovea::check
