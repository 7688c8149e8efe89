// SPDX-License-Identifier: Apache-2.0
/// Terms that are added to scores, and dropout's factors of weights, from their definitions.
#pragma once

#include <cstdint>

#include "fovea/attention.hpp"
#include "op/common/attention_core.hpp"

namespace fovea::reference {

/// A row of a head.
struct ScoreRow {
  std::int64_t batch = 0, head = 0, row = 0, seq_q = 0, seq_k = 0;
};

/// ALiBi and bias of a (row, key) pair; 0 where there is neither.
double added_score(const detail::AttentionCore& core, const AttentionArgs& args, const ScoreRow& at, std::int64_t key);

/// 0 or 1 / (1 - p); 1 without dropout.
double kept_share(const detail::AttentionCore& core, const AttentionArgs& args, const ScoreRow& at, std::int64_t key);

}  // namespace fovea::reference
