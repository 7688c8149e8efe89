// SPDX-License-Identifier: Apache-2.0
#include "fields.hpp"
#include "op/paged_attention/fields.hpp"
#include "op/paged_cache_append/fields.hpp"
#include "operators.hpp"

namespace fovea::binding {
namespace {

using PagedAttentionCall = Call<detail::kPagedAttentionFields, Asks::options>;
using PagedCacheAppendCall = Call<detail::kPagedCacheAppendFields, Asks::implementation>;

PagedAttentionDesc describe(const PagedAttentionCall& call) {
  PagedAttentionDesc desc = call.describe();
  desc.max_seq_q = query_bound(call.value<"cu_seqlens_q">(), desc.max_seq_q, desc.q.shape[0], desc.block_table.shape[0]);
  return desc;
}

/// One row a sequence, if nothing else is said.
PagedAttentionArgs with_lengths(PagedAttentionArgs args, const PagedAttentionDesc& desc) {
  if (args.cu_seqlens_q == nullptr) args.cu_seqlens_q = query_lengths(std::nullopt, desc.block_table.shape[0]);
  return args;
}

PagedAttentionArgs args_at(const PagedAttentionDesc& desc, void* const* addresses) {
  return with_lengths(PagedAttentionCall::args_at(desc, addresses), desc);
}

}  // namespace

void paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const PagedAttentionCall call{Arguments(stack)};
  const auto& kept = remembered([&] { return planned<PagedAttentionCall, plan_paged_attention>(call, describe(call)); });
  raise_if_failed(binding::run(kept.plan, with_lengths(call.pointers(kept.desc), kept.desc)));
  may_be_repeated<args_at>(kept);
}

void explain_paged_attention(StableIValue* stack, std::uint64_t, std::uint64_t) {
  const PagedAttentionCall call{Arguments(stack)};
  stack[0] = text_result(planned<PagedAttentionCall, plan_paged_attention>(call, describe(call)).plan.explain());
}

void paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  run_call<PagedCacheAppendCall, plan_paged_cache_append>(stack);
}
void explain_paged_cache_append(StableIValue* stack, std::uint64_t, std::uint64_t) {
  explain_call<PagedCacheAppendCall, plan_paged_cache_append>(stack);
}

}  // namespace fovea::binding
