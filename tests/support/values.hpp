// SPDX-License-Identifier: Apache-2.0
/// Inputs of a case. Each element follows from the case's seed and its own indices, so the order of generation does not matter.
#pragma once

#include <cstdint>

#include "case.hpp"

namespace fovea::check {

struct Index {
  std::int64_t sequence, token, head, channel;
};

class Generator {
 public:
  explicit Generator(const Case& spec);

  float q(Index at) const;
  float k(Index at, std::int64_t kv_len) const;
  float v(Index at, std::int64_t kv_len) const;
  /// A block of the block mask, by its numbers, and a pair of a row and a key in a partial one.
  enum class Block : std::uint8_t { hidden, partial, full };
  Block block(std::int64_t sequence, std::int64_t head, std::int64_t q_block, std::int64_t k_block) const;
  bool sees(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const;

  float sink(std::int64_t head) const;
  float slope(std::int64_t sequence, std::int64_t head) const;
  /// Indices as those of the tensor. A few elements are -inf where there are many.
  float bias(std::int64_t sequence, std::int64_t head, std::int64_t row, std::int64_t key) const;
  /// Some of them no powers of two.
  float scale(char tensor, std::int64_t kv_head) const;
  /// merge_states: out and lse of a part. The lse of an empty part is -inf, +inf or NaN.
  float part_out(int part, std::int64_t row, std::int64_t head, std::int64_t channel) const;
  float part_lse(int part, std::int64_t row, std::int64_t head) const;

  std::uint64_t hash(std::uint64_t tag, std::int64_t a, std::int64_t b = 0, std::int64_t c = 0, std::int64_t d = 0) const;

 private:
  bool aimed() const;  ///< Whether K points along Q, so that the score of each key can be chosen.
  float target_score(Index at, std::int64_t kv_len) const;
  float normal(std::uint64_t tag, Index at) const;
  bool empty(int part, std::int64_t row, std::int64_t head) const;

  const Case& spec_;
  std::uint64_t seed_;
  float key_per_score_;
};

}  // namespace fovea::check
