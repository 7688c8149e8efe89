// SPDX-License-Identifier: Apache-2.0
/// The public planning functions: validate once, then ask the ordered list.
#include "op/attention/validate.hpp"
#include "op/merge_states/validate.hpp"
#include "op/paged_attention/validate.hpp"
#include "op/paged_cache_append/validate.hpp"
#include "plan/select.hpp"

namespace fovea {
namespace {

template <class Impl, class Desc>
Result<Plan<typename Impl::Args>> plan(std::span<const Impl> list, const Desc& desc, Device device, const PlanOptions& options) {
  const Result<typename Impl::Problem> problem = detail::validate(desc, options);
  if (!problem) return problem.error();
  return detail::select(list, *problem, device, options);
}

}  // namespace

Result<AttentionPlan> plan_attention(const AttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan(detail::attention_implementations(), desc, device, options);
}

Result<PagedAttentionPlan> plan_paged_attention(const PagedAttentionDesc& desc, Device device, const PlanOptions& options) {
  return plan(detail::paged_attention_implementations(), desc, device, options);
}

Result<PagedCacheAppendPlan> plan_paged_cache_append(const PagedCacheAppendDesc& desc, Device device, const PlanOptions& options) {
  return plan(detail::paged_cache_append_implementations(), desc, device, options);
}

Result<MergeStatesPlan> plan_merge_states(const MergeStatesDesc& desc, Device device, const PlanOptions& options) {
  return plan(detail::merge_states_implementations(), desc, device, options);
}

}  // namespace fovea
