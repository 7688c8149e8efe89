// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "fovea/attention.hpp"
#include "fovea/merge.hpp"
#include "fovea/paged_attention.hpp"
#include "op/attention/problem.hpp"
#include "op/merge_states/problem.hpp"
#include "op/paged_attention/problem.hpp"
#include "op/paged_cache_append/problem.hpp"

namespace fovea::detail {

template <class Args>
using PlanResult = Result<std::shared_ptr<const PlanState<Args>>>;

/// One row of an ordered list. It supports a problem exactly when `plan` succeeds; Error{unsupported, reason} declines.
template <class Problem_, class Args_>
struct Implementation {
  using Problem = Problem_;
  using Args = Args_;

  std::string_view name{};     ///< "cpu.avx2.attention"
  std::string_view accepts{};  ///< a line for people: dtypes, head dims, what it declines
  Backend backend{};
  std::string_view (*unavailable)() = nullptr;  ///< "needs avx512f" when this machine cannot run it, else empty
  PlanResult<Args> (*plan)(const Problem&, Device) = nullptr;
};

using AttentionImplementation = Implementation<AttentionProblem, AttentionArgs>;
using PagedAttentionImplementation = Implementation<PagedAttentionProblem, PagedAttentionArgs>;
using PagedCacheAppendImplementation = Implementation<PagedCacheAppendProblem, PagedCacheAppendArgs>;
using MergeStatesImplementation = Implementation<MergeStatesProblem, MergeStatesArgs>;

/// The ordered lists, fastest first, the reference last. Names only: src/plan/implementations.cpp.
std::span<const AttentionImplementation> attention_implementations();
std::span<const PagedAttentionImplementation> paged_attention_implementations();
std::span<const PagedCacheAppendImplementation> paged_cache_append_implementations();
std::span<const MergeStatesImplementation> merge_states_implementations();

}  // namespace fovea::detail
