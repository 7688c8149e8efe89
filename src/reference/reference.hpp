// SPDX-License-Identifier: Apache-2.0
/// The oracle: every operation in double precision and straight loops, with a mask predicate of its own. It shares nothing with the
/// kernels.
#pragma once

#include <vector>

#include "fovea/attention.hpp"
#include "fovea/merge.hpp"
#include "fovea/paged_attention.hpp"
#include "op/attention/problem.hpp"
#include "op/merge_states/problem.hpp"
#include "op/paged_attention/problem.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::reference {

/// Unrounded results, row-major: out [total_q, head, head_dim_v], lse [total_q, head]; a fixed batch counts as total_q = batch * seq_q.
/// Rows of no sequence are not `written`, and their values mean nothing.
struct AttentionOutput {
  std::vector<double> out, lse;
  std::vector<char> written;  ///< [total_q]
};

/// Nothing written, out 0 and lse -inf.
AttentionOutput empty_output(std::int64_t total_q, std::int64_t heads, std::int64_t head_dim_v);

AttentionOutput attention(const detail::AttentionProblem& problem, const AttentionArgs& args);
AttentionOutput paged_attention(const detail::PagedAttentionProblem& problem, const PagedAttentionArgs& args);
AttentionOutput merge_states(const detail::MergeStatesProblem& problem, const MergeStatesArgs& args);

/// Exact: writes the codes themselves.
void paged_cache_append(const detail::PagedCacheAppendProblem& problem, const PagedCacheAppendArgs& args);

}  // namespace fovea::reference
