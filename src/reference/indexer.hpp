// SPDX-License-Identifier: Apache-2.0
/// The indexer in double precision and straight loops.
#pragma once

#include <vector>

#include "fovea/indexer.hpp"
#include "op/index_logits/problem.hpp"
#include "op/topk_rows/problem.hpp"

namespace fovea::reference {

/// Unrounded, row-major [rows, columns]. `seen` is 0 where a row does not see the key; the logit is -inf there.
struct IndexLogitsOutput {
  std::vector<double> logits;
  std::vector<char> seen;
};

IndexLogitsOutput index_logits(const detail::IndexLogitsProblem& problem, const IndexLogitsArgs& args);

/// Writes the lists.
void topk_rows(const detail::TopkRowsProblem& problem, const TopkRowsArgs& args);

}  // namespace fovea::reference
