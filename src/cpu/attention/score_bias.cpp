// SPDX-License-Identifier: Apache-2.0
#include "cpu/attention/score_bias.hpp"

#include <cmath>

namespace fovea::cpu {

ScoreBias::ScoreBias(const Setup& setup, const Call& call, const Sequence& sequence, std::int64_t head) : setup_(setup) {
  const detail::AttentionCore& core = setup.core;
  if (core.has_bias) {
    const std::int64_t at = sequence.index * core.bias.batch + head * core.bias.head;
    bias_ = static_cast<const std::byte*>(call.bias) + at * static_cast<std::int64_t>(size_of(core.out_dtype));
  }
  if (core.has_alibi_slopes)
    slope_ = call.alibi_slopes[sequence.index * core.alibi_slopes.batch_stride + head * core.alibi_slopes.head_stride];
  offset_ = core.mask.anchor == Anchor::bottom_right ? sequence.seq_k - sequence.seq_q : 0;
  if (core.dropout_p > 0) {
    random_ = detail::philox_key(call.dropout_state[0], call.dropout_state[1]);
    threshold_ = detail::drop_threshold(core.dropout_p);
    number_ = static_cast<std::uint32_t>(sequence.index * core.heads + head);
  }
}

void ScoreBias::load(std::int64_t query, std::int64_t key, int count, float factor, float* to) const {
  std::fill_n(to, count, 0.0f);
  if (bias_ != nullptr) {
    const detail::BiasStrides& strides = setup_.core.bias;
    const auto add = setup_.rows->add_scaled[static_cast<std::size_t>(setup_.core.out_dtype)];
    const auto size = static_cast<std::int64_t>(size_of(setup_.core.out_dtype));
    const std::byte* row = bias_ + (query * strides.row + key * strides.key) * size;
    if (strides.key == 1) {
      add(to, row, 1.0f, count);
    } else if (strides.key == 0) {
      add(to, row, 1.0f, 1);
      std::fill_n(to, count, to[0]);
    } else {
      for (int i = 0; i < count; ++i) add(to + i, row + i * strides.key * size, 1.0f, 1);
    }
  }
  if (slope_ != 0) {
    const std::int64_t diagonal = query + offset_ - key;
    for (int i = 0; i < count; ++i) to[i] -= slope_ * static_cast<float>(std::abs(i - diagonal));
  }
  for (int i = 0; factor != 1 && i < count; ++i) to[i] *= factor;
}

}  // namespace fovea::cpu
