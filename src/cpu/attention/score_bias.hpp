// SPDX-License-Identifier: Apache-2.0
/// ALiBi, bias and dropout on the CPU: what they are for a row of pairs. The softmax adds the first two, and dropped weights become zeros.
#pragma once

#include "cpu/attention/setup.hpp"
#include "op/common/dropout.hpp"

namespace fovea::cpu {

/// One query head of one sequence.
class ScoreBias {
 public:
  ScoreBias(const Setup& setup, const Call& call, const Sequence& sequence, std::int64_t head);

  /// to[i] = (ALiBi + bias) * factor of keys `key` + i.
  void load(std::int64_t query, std::int64_t key, int count, float factor, float* to) const;

  /// drop(i) for each key `key` + i that dropout takes away.
  template <class Drop>
  void for_dropped(std::int64_t query, std::int64_t key, int count, Drop&& drop) const {
    constexpr std::int64_t kBlock = detail::kDropoutKeys;
    for (std::int64_t block = key / kBlock; block * kBlock < key + count; ++block) {
      const std::uint32_t kept = detail::kept_keys(random_, threshold_, number_, static_cast<std::uint32_t>(query),  //
                                                   static_cast<std::uint32_t>(block));
      const std::int64_t begin = std::max(block * kBlock, key), end = std::min((block + 1) * kBlock, key + count);
      for (std::int64_t at = begin; at < end; ++at) {
        if ((kept >> (at - block * kBlock) & 1) == 0) drop(static_cast<int>(at - key));
      }
    }
  }

 private:
  const Setup& setup_;
  const std::byte* bias_ = nullptr;
  float slope_ = 0;
  std::int64_t offset_ = 0;  ///< of the diagonal from which ALiBi counts
  detail::PhiloxKey random_{};
  std::uint32_t threshold_ = 0, number_ = 0;
};

}  // namespace fovea::cpu
