// SPDX-License-Identifier: Apache-2.0
/// Dropout by Philox4x32-10 (Salmon et al. 2011). The dropped weights depend on the state, the head, the row and the key alone: on no tile,
/// split or device. Constant expressions also run on devices.
///
/// The call's key is the first two words of philox(offset, 0, 0; seed). Key j of row i of head h of sequence b has the 16 bits
///   low (j even) or high (j odd) half of word (j / 8) % 4 of philox(4 * (j / 32) + (j / 2) % 4, i, b * heads + h, 0; the call's key),
/// and is dropped if they are below round(65536 p). One evaluation thus serves the eight keys of a row that a thread has in a 16-bit MMA.
#pragma once

#include <cstdint>

namespace fovea::detail {

struct PhiloxKey {
  std::uint32_t low = 0, high = 0;
};

struct PhiloxWords {
  std::uint32_t x = 0, y = 0, z = 0, w = 0;

  constexpr std::uint32_t word(int index) const { return index == 0 ? x : index == 1 ? y : index == 2 ? z : w; }
};

inline constexpr int kPhiloxRounds = 10;

constexpr PhiloxWords philox_round(PhiloxWords counter, PhiloxKey key) {
  const std::uint64_t a = std::uint64_t{0xD2511F53u} * counter.x, b = std::uint64_t{0xCD9E8D57u} * counter.z;
  return {static_cast<std::uint32_t>(b >> 32) ^ counter.y ^ key.low, static_cast<std::uint32_t>(b),
          static_cast<std::uint32_t>(a >> 32) ^ counter.w ^ key.high, static_cast<std::uint32_t>(a)};
}
constexpr PhiloxKey next_round(PhiloxKey key) { return {key.low + 0x9E3779B9u, key.high + 0xBB67AE85u}; }

constexpr PhiloxWords philox(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round, key = next_round(key)) counter = philox_round(counter, key);
  return counter;
}

/// The 64 bits of a state's numbers.
constexpr PhiloxKey philox_key(std::int64_t seed, std::int64_t offset) {
  const auto low = [](std::int64_t bits) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(bits)); };
  const auto high = [](std::int64_t bits) { return static_cast<std::uint32_t>(static_cast<std::uint64_t>(bits) >> 32); };
  const PhiloxWords words = philox({low(offset), high(offset), 0, 0}, {low(seed), high(seed)});
  return {words.x, words.y};
}

/// Numbers of 16 bits below this are dropped.
constexpr std::uint32_t drop_threshold(double p) { return static_cast<std::uint32_t>(p * 65536 + 0.5); }

/// The factor of weights that stay.
constexpr float keep_factor(double p) { return static_cast<float>(1 / (1 - p)); }

/// Keys that share an evaluation of philox lie in blocks of this many.
inline constexpr int kDropoutKeys = 32;

/// Bit j: whether key 32 * block + j stays. `head` counts through the batch.
constexpr std::uint32_t kept_keys(PhiloxKey key, std::uint32_t threshold, std::uint32_t head, std::uint32_t row, std::uint32_t block) {
  std::uint32_t kept = 0;
  for (std::uint32_t pair = 0; pair < 4; ++pair) {
    const PhiloxWords words = philox({4 * block + pair, row, head, 0}, key);
    for (std::uint32_t eight = 0; eight < 4; ++eight) {
      const std::uint32_t word = words.word(static_cast<int>(eight)), at = 8 * eight + 2 * pair;
      if ((word & 0xFFFFu) >= threshold) kept |= std::uint32_t{1} << at;
      if (word >> 16 >= threshold) kept |= std::uint32_t{2} << at;
    }
  }
  return kept;
}

}  // namespace fovea::detail
