// SPDX-License-Identifier: Apache-2.0
/// The lists of a block mask, read as they are defined.
#pragma once

#include <cstdint>
#include <vector>

#include "fovea/attention.hpp"
#include "op/attention/problem.hpp"

namespace fovea::reference {

class BlockMask {
 public:
  BlockMask(const detail::AttentionProblem& problem, const AttentionArgs& args) : problem_(problem), args_(args) {}

  /// Those of `keys` that a row of a query head sees. Without a block mask, all.
  std::vector<std::int64_t> seen(std::vector<std::int64_t> keys, std::int64_t batch, std::int64_t head, std::int64_t row) const;

 private:
  const detail::AttentionProblem& problem_;
  const AttentionArgs& args_;
};

}  // namespace fovea::reference
