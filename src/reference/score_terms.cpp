// SPDX-License-Identifier: Apache-2.0
#include "reference/score_terms.hpp"

#include <array>
#include <cmath>
#include <cstdlib>

#include "reference/element.hpp"

namespace fovea::reference {
namespace {

/// Philox4x32-10 once more: pairs of products, their halves crossed over, ten times.
std::array<std::uint32_t, 4> random_words(std::array<std::uint32_t, 4> c, std::uint64_t key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = 0xD2511F53ull * c[0], second = 0xCD9E8D57ull * c[2];
    const std::uint32_t k0 = static_cast<std::uint32_t>(key) + 0x9E3779B9u * static_cast<std::uint32_t>(round);
    const std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32) + 0xBB67AE85u * static_cast<std::uint32_t>(round);
    c = {static_cast<std::uint32_t>(second >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(second),
         static_cast<std::uint32_t>(first >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(first)};
  }
  return c;
}

}  // namespace

double added_score(const detail::AttentionCore& core, const AttentionArgs& args, const ScoreRow& at, std::int64_t key) {
  double sum = 0;
  if (core.has_alibi_slopes) {
    const std::int64_t offset = core.mask.anchor == Anchor::bottom_right ? at.seq_k - at.seq_q : 0;
    const double slope = args.alibi_slopes[at.batch * core.alibi_slopes.batch_stride + at.head * core.alibi_slopes.head_stride];
    sum -= slope * static_cast<double>(std::abs(key - (at.row + offset)));
  }
  if (core.has_bias) {
    const detail::BiasStrides& s = core.bias;
    sum += load(core.out_dtype, args.bias, at.batch * s.batch + at.head * s.head + at.row * s.row + key * s.key);
  }
  return sum;
}

double kept_share(const detail::AttentionCore& core, const AttentionArgs& args, const ScoreRow& at, std::int64_t key) {
  if (core.dropout_p == 0) return 1;
  const auto seed = static_cast<std::uint64_t>(args.dropout_state[0]), offset = static_cast<std::uint64_t>(args.dropout_state[1]);
  const auto of_call = random_words({static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(offset >> 32), 0, 0}, seed);
  const auto of_keys = random_words({static_cast<std::uint32_t>(key / 32 * 4 + key / 2 % 4), static_cast<std::uint32_t>(at.row),
                                     static_cast<std::uint32_t>(at.batch * core.heads + at.head), 0},
                                    of_call[0] | std::uint64_t{of_call[1]} << 32);
  const std::uint32_t word = of_keys[static_cast<std::size_t>(key / 8 % 4)], bits = key % 2 == 0 ? word & 0xFFFF : word >> 16;
  return bits < std::lround(core.dropout_p * 65536) ? 0 : 1 / (1 - core.dropout_p);
}

}  // namespace fovea::reference
